"""A function on NumPy arrays as a kernel: tensors come in as arrays, and arrays go out as tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from custom_autograd.kernels.arrays import to_arrays, to_tensors


def numpy_kernel(function: Callable[..., Any]) -> NumpyKernel:
    """A function on NumPy arrays, to be registered as a kernel for the CPU.

    Args:
        function: takes an array for each tensor of the op, on the same memory, also within lists, tuples and dicts;
            other arguments as they are. Returns arrays, or NumPy's scalars, for tensors. NumPy has no bfloat16 and no
            float8: for such tensors the call raises.

    Returns:
        The kernel. It computes values only: gradients belong to the op that calls it. A tensor that it returns owns
        its memory: an array that is a view, read-only, or kept somewhere else is copied.

    Example:
        >>> import numpy
        >>> import torch
        >>> @numpy_kernel
        ... def sorted_values(x):
        ...     return numpy.sort(x)
        >>> sorted_values(torch.tensor([3.0, 1.0, 2.0]))
        tensor([1., 2., 3.])
    """
    return NumpyKernel(function)


class NumpyKernel:
    """A function on NumPy arrays that takes and returns tensors; see `numpy_kernel`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # Any: what the op's schema says
        """Runs the function on arrays.

        Raises:
            KernelError: a tensor cannot become an array, or an array a tensor.
        """
        arrays = to_arrays(self.function, args, kwargs)
        named = dict(zip(kwargs, arrays[len(args) :], strict=True))
        return to_tensors(self.function, [self.function(*arrays[: len(args)], **named)], arrays)

    def __repr__(self) -> str:
        return f"numpy_kernel({self.function!r})"

    def __reduce__(self) -> str:
        return str(self.function.__qualname__)  # a decorator put this in the function's place
