"""A function on NumPy arrays as a kernel, and tensors as arrays on the same memory."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.errors import KernelError, KernelUnavailable
from custom_autograd.core.locations import location_of
from custom_autograd.core.metadata import PLAIN
from custom_autograd.core.signatures import read_signature
from custom_autograd.registration.declaration import OpKernel


def to_arrays(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return positional and then keyword arguments with arrays for tensors, also within lists, tuples and dicts."""
    # An array shares its tensor's memory. That of a lazily conjugated or negated tensor cannot: it is a copy, and
    # read-only, so that what would be written to it is not silently lost.
    try:
        return [replaced(value) for value in ((*args, *kwargs.values()) if kwargs else args)]
    except Unsuitable as error:
        arguments = named_arguments(function, args, kwargs)
        items = (item for argument in arguments for item in labelled(*argument))
        raise KernelError(
            kernel_name(function),
            f"'{next(label for label, item in items if item is error.tensor)}' cannot become a NumPy array",
            expected="a strided CPU tensor of a dtype that NumPy has: not bfloat16 and no float8",
            found=str(error),
            do="let another kernel serve such tensors, or write this one in PyTorch operations",
        ) from error


def kernel_name(function: Callable[..., Any]) -> str:
    """Return what messages call a function."""
    return str(getattr(function, "__name__", None) or repr(function))


def named_arguments(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a call with their names; those of `*xs` are `xs[0]`, `xs[1]` and so on."""
    yield from zip(_positional_names(function), args, strict=False)  # there are always more names
    yield from kwargs.items()


def _positional_names(function: Callable[..., Any]) -> Iterator[str]:
    try:
        parameters = [*read_signature(function).parameters.values()]
    except ValueError:  # a function in C that has none
        parameters = []
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            yield from (f"{parameter.name}[{index}]" for index in range(sys.maxsize))
        yield parameter.name
    yield from (f"argument {index}" for index in range(sys.maxsize))  # too many: the call itself says so


def labelled(label: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values in a nested argument with their labels."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from labelled(f"{label}[{key!r}]", item)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from labelled(f"{label}[{number}]", item)
    else:
        yield label, value


class Unsuitable(Exception):  # noqa: N818 - carries a tensor and a reason to where the message is made
    """A tensor that NumPy cannot hold."""

    def __init__(self, tensor: Tensor, reason: str) -> None:
        super().__init__(reason)
        self.tensor = tensor


def replaced(value: Any) -> Any:
    """Return a value with arrays for tensors."""
    if type(value) in PLAIN:
        try:
            return (value.detach() if value.requires_grad else value).numpy()
        except (TypeError, RuntimeError):
            pass  # lazily conjugated or negated; or an error, to be raised by what follows
    if isinstance(value, Tensor):
        return to_array(value)
    if isinstance(value, dict):
        return {key: replaced(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return rebuilt(type(value), [replaced(item) for item in value])
    return value


def rebuilt(kind: type[Any], items: list[Any]) -> Any:
    """Return items in a list, a tuple, or the NamedTuple that they came in."""
    if issubclass(kind, list):
        return items
    return kind(*items) if hasattr(kind, "_fields") else tuple(items)


def to_array(tensor: Tensor) -> Any:
    """Return one tensor's array."""
    try:
        array = tensor.detach().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:
        described = f"a {type(tensor).__name__} of {tensor.dtype} on {tensor.device}"
        raise Unsuitable(tensor, f"{described}: {error}") from error
    if tensor.is_conj() or tensor.is_neg():
        array.flags.writeable = False
    return array


def leaves(value: Any) -> Iterator[Any]:
    """Yield the arrays in nested arguments."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif hasattr(type(value), "__array_interface__"):  # not of the value, which makes a dict of itself
        yield value


def make_read_only(values: Iterable[Any]) -> None:
    """Make the arrays among values read-only, also those within lists, tuples and dicts."""
    for value in values:
        if hasattr(type(value), "__array_interface__"):
            value.setflags(write=False)
        elif isinstance(value, (list, tuple, dict)):
            make_read_only(leaves(value))


def to_tensors(function: Callable[..., Any], holder: list[Any], taken: list[Any]) -> Any:
    """Return the result of a kernel with tensors for arrays and NumPy's scalars, in lists, tuples and dicts too."""
    # A tensor takes the memory of an array without other references, and a copy of any other: of a view, of an
    # argument, of what the kernel keeps, of what is read-only, and of what has a negative stride. `holder` has the only
    # reference to the result, and `taken` the arrays whose memory is in use.
    numpy = numpy_module(function)
    is_kept = sys.getrefcount(holder[0]) > 2  # the holder's reference, and that of the question
    value = holder[0]
    if isinstance(value, numpy.ndarray):
        array = value if is_own(value, is_kept, taken) else value.copy("K")
        taken.append(array)
        return to_tensor(function, array)
    if isinstance(value, numpy.generic):
        return to_tensor(function, numpy.asarray(value))
    holder.clear()
    if isinstance(value, dict):
        held = {key: [item] for key, item in value.items()}
        del value
        return {key: to_tensors(function, one, taken) for key, one in held.items()}
    if isinstance(value, (list, tuple)):
        parts, kind = [[item] for item in value], type(value)
        del value
        return rebuilt(kind, [to_tensors(function, part, taken) for part in parts])
    return value


def is_own(array: Any, is_kept: bool, taken: Sequence[Any]) -> bool:
    """Return True if the memory of an array belongs to it alone, and a tensor can be laid over it."""
    flags = array.flags
    if not flags.writeable:
        return False
    for stride in array.strides:  # any() takes 0.2 µs more, at every call
        if stride < 0:
            return False
    if array.base is None:
        return flags.owndata and not is_kept
    # Numba's own allocation, which no global of a compiled function can keep; a view of an argument has one too.
    if type(array.base).__name__ != "_MemInfo":
        return False
    may_share = sys.modules["numpy"].may_share_memory
    return not any(may_share(array, other) for other in leaves(taken))


def to_tensor(function: Callable[..., Any], array: Any) -> Tensor:
    """Return the tensor on an array's memory."""
    found = ""
    if type(array) is numpy_module(function).ndarray:
        try:
            return torch.from_numpy(array)
        except (TypeError, ValueError) as error:
            found = f": {error}"
    raise KernelError(
        kernel_name(function),
        "what the kernel returns cannot become a tensor",
        expected="a numpy.ndarray of a dtype that PyTorch has",
        found=f"a {type(array).__module__}.{type(array).__name__} of {array.dtype}{found}",
        do="convert it in the kernel: numpy.asarray(..., dtype=...)",
    )


def numpy_module(function: Callable[..., Any]) -> Any:  # Any: NumPy is optional, and imported late
    """Return NumPy."""
    try:
        import numpy  # the statement takes a fifth of the time of importlib.import_module, at every call
    except ImportError as error:
        problem, do = "the kernel needs NumPy", "pip install numpy"
        raise KernelUnavailable(kernel_name(function), problem, found=str(error), do=do) from error
    return numpy


def numpy_kernel(function: Callable[..., Any]) -> NumpyKernel:
    """Return a function on NumPy arrays, to be registered as a kernel for the CPU.

    Args:
        function: takes an array for each tensor of the op, on the same memory, also within lists, tuples and dicts;
            other arguments as they are. The arrays of arguments that the op does not declare as mutated are read-only.
            Returns arrays, or NumPy's scalars, for tensors. NumPy has no bfloat16 and no
            float8: for such tensors the call raises.

    Returns:
        The kernel, which computes values only; gradients belong to the op that calls it. A tensor that it returns
        owns its memory: an array that is a view, read-only, or kept somewhere else is copied.

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


ONLY_READ = " if it is written to (in Cython, one that is only read is `const double[:]`)"


class NumpyKernel(OpKernel):
    """A function on NumPy arrays that takes and returns tensors; see `numpy_kernel`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:  # Any: what the op's schema declares
        """Run the function on arrays.

        Raises:
            KernelError: a tensor cannot become an array, or an array a tensor.
        """
        arrays = to_arrays(self.function, args, kwargs)
        return to_tensors(self.function, [self._run(arrays, args, kwargs)], [arrays])

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
        is_buffer = str(error).startswith("buffer")  # of Cython, whose memoryviews are writable unless they are const
        does, then, unless = ("asks to write to", "pass", ONLY_READ) if is_buffer else ("writes to", "write to", "")
        return KernelError(
            self._op,
            f"the NumPy kernel {does} a read-only array, such as that of {named}",
            expected="writes to arguments that the op declares as mutated, and to arrays that the kernel makes",
            found=str(error),
            rule=location_of(self.function),
            do=f"{then} a copy, or declare the argument{unless}: mutates_args=('{next(iter(names))}',)",
        )
