"""A Triton kernel in a file that imports without Triton: it is compiled at its first launch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch
from torch.library import wrap_triton

from custom_autograd.core.device_types import error_of_devices
from custom_autograd.core.errors import KernelUnavailable, Origin
from custom_autograd.core.locations import location_of
from custom_autograd.kernels.launches import are_recorded, unavailable


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

        A launch raises KernelUnavailable if the kernel cannot run here: see launches.py.

        Raises:
            KernelUnavailable: Triton is not installed.
        """
        if are_recorded():
            recorded: Callable[..., Any] = wrap_triton(self.compiled())[grid]
            return recorded
        return partial(self._launch, self.compiled()[grid])

    def _launch(self, launch: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:  # Any: Triton's own
        if _are_several():
            self._refuse_foreign_memory(args, kwargs)
        try:
            return launch(*args, **kwargs)
        except Exception as error:
            reason = unavailable(self.function.__name__, error)
            if reason is None:
                raise
            raise reason from error

    def _refuse_foreign_memory(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise if tensors are on several devices: Triton does not notice that memory is that of another GPU."""
        given = {**dict(zip(self.function.__code__.co_varnames, args, strict=False)), **kwargs}
        error = error_of_devices(
            Origin(self.function.__name__, location_of(self.function)), given, "all tensors on one GPU"
        )
        if error is not None:
            raise error

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """Return the function, by which compile caches notice that it changed."""
        return self.function

    def compiled(self) -> Any:  # Any: triton has no types here
        """Return the function under `triton.jit`, once."""
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


@cache
def _are_several() -> bool:
    """Return True if there are several GPUs; a kernel is launched, so that their driver runs."""
    return torch.accelerator.is_available() and torch.accelerator.device_count() > 1


tl: Any = None  # Any: in place of triton.language in a module whose kernels have not been launched
