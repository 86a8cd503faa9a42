"""A function on NumPy arrays as a kernel: tensors come in as arrays, and arrays go out as tensors."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from custom_autograd.core.errors import KernelError
from custom_autograd.core.locations import location_of
from custom_autograd.kernels.arrays import leaves, make_read_only, to_arrays, to_tensors
from custom_autograd.registration.op_kernels import OpKernel


def numpy_kernel(function: Callable[..., Any]) -> NumpyKernel:
    """Return a function on NumPy arrays, to be registered as a kernel for the CPU.

    Args:
        function: takes an array for each tensor of the op, on the same memory, also within lists, tuples and dicts;
            other arguments as they are. The arrays of arguments that the op does not declare as mutated are read-only.
            Returns arrays, or NumPy's scalars, for tensors. NumPy has no bfloat16 and no
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


REFUSAL = re.compile(r"\b(array|destination|base|buffer)\b.* is read-only")
"""In NumPy's own words: "assignment destination is read-only", "sort array is read-only", and not a file that is."""


class NumpyKernel(OpKernel):
    """A function on NumPy arrays that takes and returns tensors; see `numpy_kernel`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:  # Any: what the op's schema says
        """Run the function on arrays.

        Raises:
            KernelError: a tensor cannot become an array, or an array a tensor.
        """
        arrays = to_arrays(self.function, args, kwargs)
        return to_tensors(self.function, [self._run(arrays, args, kwargs)], arrays)

    def _run(self, arrays: list[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # Any: what it returns
        """Call the function with arrays, which are made of these arguments."""
        if not kwargs:
            return self.function(*arrays)
        return self.function(*arrays[: len(args)], **dict(zip(kwargs, arrays[len(args) :], strict=True)))

    def of_op(self, op: str, arguments: Sequence[str], written: Collection[str]) -> NumpyKernel:
        """Return the kernel as an op calls it: with read-only arrays for the arguments that it does not write to."""
        return NumpyKernelOfOp(self.function, op, arguments, written)

    def __repr__(self) -> str:
        return f"numpy_kernel({self.function!r})"

    def __reduce__(self) -> str:
        return str(self.function.__qualname__)  # a decorator replaced the function by this


class NumpyKernelOfOp(NumpyKernel):
    """A NumPy kernel that may write only to the arguments that its op declares as mutated."""

    def __init__(
        self, function: Callable[..., Any], op: str, arguments: Sequence[str], written: Collection[str]
    ) -> None:
        super().__init__(function)
        self._op = op
        self._arguments = tuple(arguments)
        self._written = written

    def _run(self, arrays: list[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # Any: as above
        make_read_only([value for _, value in self._fixed(arrays, kwargs)] if self._written else arrays)
        try:
            return super()._run(arrays, args, kwargs)
        except ValueError as error:
            if not REFUSAL.search(str(error)):
                raise
            given = to_arrays(self.function, args, kwargs)  # the kernel may have emptied the lists that it was given
            names = [name for name, value in self._fixed(given, kwargs) if any(True for _ in leaves(value))]
            if not names:
                raise
            raise self._refused(dict.fromkeys(names), error) from error

    def _fixed(self, arrays: list[Any], keywords: Collection[str]) -> list[tuple[str, Any]]:
        """Return the arguments that the op does not write to."""
        count = len(arrays) - len(keywords)
        beyond = self._arguments[-1:] * (count - len(self._arguments))
        names = [*self._arguments[:count], *beyond, *keywords]
        return [(name, value) for name, value in zip(names, arrays, strict=True) if name not in self._written]

    def _refused(self, names: Iterable[str], error: ValueError) -> KernelError:
        named = " or ".join(f"'{name}'" for name in names)
        return KernelError(
            self._op,
            f"the NumPy kernel writes to a read-only array, such as that of {named}",
            expected="writes to arguments that the op declares as mutated, and to arrays that the kernel makes",
            found=str(error),
            rule=location_of(self.function),
            do=f"write to a copy, or declare the argument: mutates_args=('{next(iter(names))}',)",
        )
