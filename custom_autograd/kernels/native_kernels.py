"""C++ kernels that native code is to call by itself, from when its library is loaded."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

from custom_autograd.core.locks import ThreadLock
from custom_autograd.frozen_dataclass import dataclass

SLOTS = ("_native", "_vectorcall")
"""What native code keeps in an op or a kernel: see take_over in native/source/call.cpp."""


@dataclass(frozen=True, slots=True)
class NativeOperator:
    """What the library of a C++ kernel registers.

    Attributes:
        name: the qualified name, "namespace::name".
        source: the name of the C++ file.
        addresses: of its boxed kernels of torch's stable ABI, each with its dispatch key, such as ("CPU", 4096).
        is_contiguous: its tensors have to be; the `__call__` of the object takes others.
    """

    name: str
    source: str
    addresses: tuple[tuple[str, int], ...]
    is_contiguous: bool = False


Server = Callable[[object, NativeOperator], None]

_lock = ThreadLock()  # which a finalizer that loads a kernel takes again
# Kernels that wait for the library, which is loaded once in a process.
_offered: weakref.WeakKeyDictionary[object, NativeOperator] = weakref.WeakKeyDictionary()
_server: Server | None = None
_library: Path | None = None


def library() -> Path | None:
    """Return the file of the library of native calls, if this process has loaded it."""
    return _library


def offer(kernel: object, operator: NativeOperator) -> None:
    """Offer a kernel to native code: now, or when its library is loaded."""
    with _lock:
        _offered[kernel] = operator
        server = _server
    if server is not None:
        server(kernel, operator)


def serve_by(server: Server, library: Path | None = None) -> None:
    """Pass every kernel that was offered, and every one that will be, to native code."""
    global _server, _library
    with _lock:
        _server, _library = server, library
        offered = list(_offered.items())
    for kernel, operator in offered:
        server(kernel, operator)
