"""Public names of a package that are loaded when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping


def loader_of(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package.

    Args:
        package: its name.
        homes: by public name, the module in the package that defines it.
    """

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return load
