"""Who registered kernels for an op with the dispatcher, and whether anything may have changed since one looked.

The dispatcher tells nobody about a new kernel, and asking it takes as long as a call. So:

- `torch.library.Library.impl`, `_destroy`: wrapped once, to count what Python registers and withdraws.
- `sys.modules`, `torch.ops.loaded_libraries`: they grow when C++ that may register kernels is loaded.
- `_C._dispatch_dump`: the kernels of an op, and the file of the `Library` through which each was registered.

What a shared library registers that is loaded through neither (by ctypes, say) is noticed with the next of these.
"""

from __future__ import annotations

import functools
import re
import sys
import weakref
from collections.abc import Callable, Set
from typing import Any

import torch
from torch import _C

modules = sys.modules
loaded_libraries: Set[str] = torch.ops.loaded_libraries
REGISTERED = re.compile(r"^(\w+)(?:\[alias\])?: registered at (.*):\d+ ::", re.MULTILINE)


class Changes:
    """Counts the registrations of this process.

    Attributes:
        count: goes up with each one that Python makes or withdraws, by anybody and for any op.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def note(self) -> None:
        """Something was registered or withdrawn."""
        self.count += 1


changes = Changes()


def foreign_keys(name: str, file: str) -> frozenset[str]:
    """The dispatch keys of an op whose kernel somebody else registered.

    Args:
        name: "namespace::name".
        file: the source file whose `Library` objects are our own.
    """
    return frozenset(key for key, where in REGISTERED.findall(_C._dispatch_dump(name)) if where != file)


def _noting(function: Callable[..., Any]) -> Callable[..., Any]:  # Any: a method of torch's
    """The same method, which then counts a change: also one that takes effect when the library dies."""

    @functools.wraps(function)
    def call(library: torch.library.Library, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(library, *args, **kwargs)
        finally:
            changes.note()
            if library not in _WATCHED:
                _WATCHED.add(library)
                weakref.finalize(library, changes.note)

    return call


_WATCHED: weakref.WeakSet[torch.library.Library] = weakref.WeakSet()
torch.library.Library.impl = _noting(torch.library.Library.impl)  # type: ignore[method-assign]
torch.library.Library._destroy = _noting(torch.library.Library._destroy)  # type: ignore[method-assign]
