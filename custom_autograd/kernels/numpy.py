"""A function on NumPy arrays as a kernel: tensors come in as arrays, and arrays go out as tensors."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from custom_autograd.core.errors import KernelError
from custom_autograd.core.locations import location_of
from custom_autograd.kernels.arrays import leaves, to_arrays, to_tensors
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
        return to_tensors(self.function, [self._run(arrays, kwargs)], arrays)

    def _run(self, arrays: list[Any], names: Collection[str]) -> Any:  # Any: what the function returns
        """Call the function with arrays, the last of which are keyword arguments of these names."""
        count = len(arrays) - len(names)
        return self.function(*arrays[:count], **dict(zip(names, arrays[count:], strict=True)))

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
        self._arguments = arguments
        self._written = written

    def _run(self, arrays: list[Any], names: Collection[str]) -> Any:  # Any: as above
        count = len(arrays) - len(names)
        repeated = itertools.chain(self._arguments, itertools.repeat(self._arguments[-1])) if count else ()
        own = [*itertools.islice(repeated, count), *names]
        given = {name: list(leaves(value)) for name, value in zip(own, arrays, strict=True)}
        fixed = {name: its for name, its in given.items() if its and name not in self._written}
        for array in itertools.chain.from_iterable(fixed.values()):
            array.flags.writeable = False
        try:
            return super()._run(arrays, names)
        except ValueError as error:  # NumPy's: "assignment destination is read-only", "output array is read-only", ...
            if "read-only" not in str(error) or not fixed:
                raise
            raise self._refused(fixed, error) from error

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
