"""A Triton kernel in a file that imports without Triton: it is compiled at its first launch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch.library import wrap_triton

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.core.launches import are_recorded


def triton_kernel(function: Callable[..., Any]) -> TritonKernel:
    """Return a function in Triton's language, to be launched as `kernel[grid](...)`.

    Args:
        function: a function of a module that begins with `from __future__ import annotations` and imports `tl` from
            here, in place of which the first launch puts `triton.language`. It may call other such functions.

    Returns:
        What is launched.

    Example:
        >>> @triton_kernel
        ... def double(x, out, BLOCK: "tl.constexpr"):
        ...     index = tl.arange(0, BLOCK)
        ...     tl.store(out + index, 2 * tl.load(x + index))
        >>> double
        triton_kernel(double)
    """
    return TritonKernel(function)


class TritonKernel:
    """A Triton kernel that is compiled when it is first launched; see `triton_kernel`."""

    __slots__ = ("_compiled", "function")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._compiled: Any = None  # Any: triton has no types here

    def __getitem__(self, grid: Any) -> Callable[..., Any]:  # Any: Triton's grids are tuples or callables
        """Return the kernel on a grid, as Triton spells it; its launch is recorded where a graph inlines the op.

        Raises:
            KernelUnavailable: Triton is not installed.
        """
        kernel = wrap_triton(self.compiled()) if are_recorded() else self.compiled()
        launch: Callable[..., Any] = kernel[grid]
        return launch

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """Return the function, by which compile caches notice that it changed."""
        return self.function

    def compiled(self) -> Any:  # Any: triton has no types here
        """Return the function under `triton.jit`, once.

        Raises:
            KernelUnavailable: Triton is not installed.
        """
        if self._compiled is None:
            self._compiled = compiled(self.function)
        return self._compiled

    def __repr__(self) -> str:
        return f"triton_kernel({self.function.__name__})"


def compiled(function: Callable[..., Any]) -> Any:  # Any: triton has no types here
    """Return the function under `triton.jit`, with `tl` in its module."""
    try:
        triton = importlib.import_module("triton")
        language = importlib.import_module("triton.language")
    except ImportError as error:
        raise KernelUnavailable(
            function.__name__, "the kernel needs Triton", found=str(error), do="pip install triton (Linux only)"
        ) from error
    assert isinstance(function, FunctionType)
    function.__globals__["tl"] = language
    for name in function.__code__.co_names:  # kernels that it calls: Triton looks for its own kind of function there
        called = function.__globals__.get(name)
        if isinstance(called, TritonKernel):
            function.__globals__[name] = called.compiled()
    return triton.jit(function)


tl: Any = None  # Any: in place of triton.language in a module whose kernels have not been launched
