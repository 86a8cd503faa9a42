"""Modules that take a while to import: something is done with them once the program has imported them.

- `sys.meta_path`: a finder that finds a module as the other finders do, and acts after the module has run.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any


class _Finder(MetaPathFinder):
    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name, self._act = name, act

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of the module; None for any other (Any: as the import system passes them)."""
        if fullname != self._name:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec, spec.loader, self._act)
        return spec


class _Loader(Loader):
    """Loads one module as another loader does, which may be that of many modules, and acts after that."""

    def __init__(self, spec: importlib.machinery.ModuleSpec, loader: Loader, act: Callable[[ModuleType], None]) -> None:
        self._spec, self._loader, self._act = spec, loader, act

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Return the module, as the other loader makes it."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, from here on with the other loader as its own."""
        self._spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._act(module)


class AwaitedModule:
    """A module that the program may import later.

    Attributes:
        module: it, once it is whole: `sys.modules` has it while it still runs in another thread.
    """

    def __init__(self, name: str) -> None:
        self.module: ModuleType | None = None
        self._acts: list[Callable[[], None]] = []
        if name in sys.modules:
            self._arrive(importlib.import_module(name))  # waits for a thread in the midst of its import
        else:
            sys.meta_path.insert(0, _Finder(name, self._arrive))

    def when_imported(self, act: Callable[[], None]) -> None:
        """Call a function, now or when the program has imported the module."""
        self._acts.append(act)
        if self.module is not None:
            act()

    def _arrive(self, module: ModuleType) -> None:
        self.module = module  # before what is to be done, so that no registration of another thread is missed
        for act in self._acts:
            act()
