"""Who registered kernels for an op with the dispatcher, and whether anything may have changed since one looked.

The dispatcher does not notify of a new kernel, and a query takes as long as a call. So:

- `torch.library.Library.impl`, `_destroy`, `torch.ops.load_library`: wrapped once, to count what is registered or
  withdrawn through them.
- `importlib.machinery.ExtensionFileLoader.create_module`: wrapped too, since the C++ of an extension module may
  register kernels when it is imported.
- `_C._dispatch_dump`: the kernels of an op, and the file of the `Library` through which each was registered.

What a shared library registers that is loaded by other means (by ctypes, say) is noticed with the next of these.
"""

from __future__ import annotations

import functools
import importlib.machinery
import os
import re
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import _C

from custom_autograd.torch_private.operators import all_names

REGISTERED = re.compile(r"^(\w+)(?:\[alias\])?: registered at (.*):\d+ ::", re.MULTILINE)


class Changes:
    """The registrations of this process, as they happen.

    Attributes:
        count: goes up with each one that is made or withdrawn, by any code and for any op.
        lock: held while one is noted; reentrant, since a finalizer may note a change at any moment.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.count = 0
        self._listeners: dict[int, Callable[[], None]] = {}
        self._always: tuple[Callable[[], object], ...] = ()

    def note(self) -> None:
        """Call every listener, after something was registered or withdrawn."""
        with self.lock:
            self.count += 1
            for tell in self._always:
                tell()
            if self._listeners:
                listeners, self._listeners = self._listeners, {}
                for listener in listeners.values():
                    listener()

    def tell_once(self, listener: Callable[[], None]) -> None:
        """Call a bound method at the next change, once, however often it is given."""
        with self.lock:
            self._listeners[id(listener.__self__)] = listener  # type: ignore[attr-defined]  # it is bound

    def tell_always(self, listener: Callable[[], object]) -> None:
        """Call a function at every change from now on."""
        with self.lock:
            self._always += (listener,)

    def renew_lock(self) -> None:
        """Replace the lock in a forked child: a thread of the parent may have held it."""
        self.lock = threading.RLock()
        self.note()


changes = Changes()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=changes.renew_lock)


def foreign_keys(name: str, file: str) -> frozenset[str]:
    """Return the dispatch keys of an op whose kernel other code registered.

    Args:
        name: "namespace::name".
        file: the source file whose `Library` objects are our own.
    """
    dump = _C._dispatch_dump(name)
    is_our_own = dump.count(": registered at ") == dump.count(f": registered at {file}:")
    if is_our_own:  # as nearly all ops are, and quickly seen
        return frozenset()
    return frozenset(key for key, where in REGISTERED.findall(dump) if where != file)


def is_own(name: str, file: str, keys: frozenset[str]) -> bool:
    """Return True if `file` surely registered all that the dispatcher would run for an op at some keys.

    Native code knows, in a tenth of the time of a dump; until it is loaded, nothing is sure.

    Args:
        name: "namespace::name".
        file: as in `foreign_keys`.
        keys: dispatch keys.
    """
    return _is_own is not None and _is_own(name, file, keys)


def ask_native(ask: Callable[[str, str, frozenset[str]], bool]) -> None:
    """Set what answers `is_own`: a function of the native library that was loaded."""
    global _is_own
    _is_own = ask


_is_own: Callable[[str, str, frozenset[str]], bool] | None = None


def names_in(namespace: str) -> list[str]:
    """Return the names of the ops of a namespace, whoever registered them, without the namespace."""
    found = (name.partition(".")[0].partition("::") for name in all_names())
    return sorted({name for space, _, name in found if space == namespace})


def _noting(function: Callable[..., Any]) -> Callable[..., Any]:  # Any: a method of torch's
    """Return the same method, which then counts a change.

    What a Library holds is withdrawn when it dies: another change.
    """

    @functools.wraps(function)
    def call(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(owner, *args, **kwargs)
        finally:
            changes.note()
            if isinstance(owner, torch.library.Library) and owner not in _WATCHED:
                _WATCHED.add(owner)
                weakref.finalize(owner, changes.note)

    return call


_WATCHED: weakref.WeakSet[torch.library.Library] = weakref.WeakSet()
for _owner, _name in (
    (torch.library.Library, "impl"),
    (torch.library.Library, "_destroy"),
    (type(torch.ops), "load_library"),
    (importlib.machinery.ExtensionFileLoader, "create_module"),
):
    setattr(_owner, _name, _noting(getattr(_owner, _name)))
