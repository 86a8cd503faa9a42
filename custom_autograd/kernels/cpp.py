"""A function of a C++ source file as a Python callable: built at its first call, with something to fall back to.

kernel = cpp_kernel(Path(__file__).with_suffix(".cpp"), "rms_norm", fallback=reference)

first call -> library in the cache? -> load -> kernel(...) from now on
              no -> build (see `library.py`) -> load
                    cannot be built -> one warning, then fallback(...) from now on
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from custom_autograd.core.errors import KernelUnavailable, KernelWarning
from custom_autograd.core.messages import format_message
from custom_autograd.kernels.library import find_or_build


def cpp_kernel(
    source: str | os.PathLike[str],
    function: str,
    *,
    fallback: Callable[..., Any] | None = None,
    flags: Sequence[str] = (),
) -> CppKernel:
    """A function that a C++ source file defines; nothing is built or loaded before the first call.

    The source includes `custom_autograd/kernel.h` and registers its functions in the namespace that the build gives
    it: `STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m)` and `STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m)`.

    Args:
        source: the C++ file. It is compiled alone, against torch's stable ABI.
        function: the name under which the source registers the function.
        fallback: what runs instead where the source cannot be built, with the same arguments. Without one the call
            raises.
        flags: further flags for the compiler.

    Returns:
        The callable, fit for the body of a kernel registered with `op.register_kernel("cpu")`.

    Example:
        >>> kernel = cpp_kernel("no/such/file.cpp", "double", fallback=lambda x: x + x)
        >>> kernel.source.name
        'file.cpp'
    """
    return CppKernel(Path(source), function, fallback, tuple(flags))


class CppKernel:
    """A function of a C++ source file; see `cpp_kernel`.

    It is safe in threads, after a fork, and in processes that start together. It computes values only: gradients
    belong to the op that calls it.
    """

    __slots__ = ("_call", "fallback", "flags", "function", "source")

    def __init__(
        self, source: Path, function: str, fallback: Callable[..., Any] | None, flags: tuple[str, ...]
    ) -> None:
        self.source = source
        self.function = function
        self.fallback = fallback
        self.flags = flags
        self._call: Callable[..., Any] = self._first_call

    def __call__(self, *args: Any) -> Any:  # Any: the source's schema types the call
        """Runs the kernel, or its fallback where it cannot be built."""
        return self._call(*args)

    def __repr__(self) -> str:
        return f"cpp_kernel({str(self.source)!r}, {self.function!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return CppKernel, (self.source, self.function, self.fallback, self.flags)

    def load(self) -> Callable[..., Any]:
        """The function itself, built and loaded if need be.

        Raises:
            KernelUnavailable: there is no compiler, it refuses the source, or the cache cannot be written.
        """
        # The functions are private torch ops, called through their overload: 3.6 us for rms_norm on 8 elements with
        # both outputs allocated in C++, against 4.4 us for ctypes with outputs allocated in Python; and unlike raw
        # pointers an op refuses fake tensors and wrong types, and turns C++ exceptions into Python's.
        name, path = find_or_build(self.source, self.flags)
        # One library may be reached by two paths (two cache folders); loaded twice it would register its ops twice.
        if not any(Path(loaded).name == path.name for loaded in torch.ops.loaded_libraries):
            load_library(path)
        try:
            overload: Callable[..., Any] = getattr(getattr(torch.ops, name), self.function).default
        except AttributeError as error:
            problem = f"the source registers no function '{self.function}' in KERNEL_NAMESPACE"
            raise KernelUnavailable(format_message(self.source.name, problem, rule=str(self.source))) from error
        return overload

    def _first_call(self, *args: Any) -> Any:
        with loading:
            if self._call == self._first_call:
                self._call = self._chosen()
        return self._call(*args)

    def _chosen(self) -> Callable[..., Any]:
        """The kernel; or its fallback after a warning; or what raises the reason, so that it is not built again."""
        try:
            return self.load()
        except KernelUnavailable as error:
            reason = str(error)
        if self.fallback is None:
            return Refusal(reason)
        advice = f"\n  meanwhile  '{self.function}' runs in its fallback, more slowly"
        self._call = self.fallback  # before the warning, which may be turned into an exception
        warnings.warn(reason + advice, KernelWarning, stacklevel=4)
        return self.fallback


class Refusal:
    """Raises why a kernel is not available, at every call."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __call__(self, *args: Any) -> None:  # Any: whatever the kernel would have been given
        """Raises the reason."""
        raise KernelUnavailable(self.reason)


def load_library(path: Path) -> None:
    """Loads a built library into this process."""
    try:
        torch.ops.load_library(path)
    except OSError as error:
        advice = "delete the file; the next process builds it again"
        message = format_message(path.name, "the library cannot be loaded", found=str(error), rule=str(path), do=advice)
        raise KernelUnavailable(message) from error


def renew_lock() -> None:
    """Gives a forked child a lock of its own: the parent's may have been held at the fork, by a thread now gone."""
    global loading
    loading = threading.Lock()


loading = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renew_lock)
