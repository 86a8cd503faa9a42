"""Tensors as NumPy arrays on the same memory, and arrays as tensors that own theirs."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.errors import KernelError, KernelUnavailable


def to_arrays(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return positional and then keyword arguments with arrays for tensors, also within lists, tuples and dicts.

    An array shares its tensor's memory. That of a lazily conjugated or negated tensor cannot: it is a copy, and
    read-only, so that what would be written to it is not silently lost.

    Args:
        function: the kernel that they are for; named in messages.
        args: the positional arguments.
        kwargs: the keyword arguments.

    Raises:
        KernelError: a tensor has a dtype, device, layout or class that NumPy has not.
    """
    names = argument_names(function)
    values = [(next(names), value) for value in args] + list(kwargs.items())
    try:
        return [replaced(label, value) for label, value in values]
    except Unsuitable as error:
        label, reason = error.args
        raise KernelError(
            kernel_name(function),
            f"'{label}' cannot become a NumPy array",
            expected="a strided CPU tensor of a dtype that NumPy has: not bfloat16 and no float8",
            found=reason,
            do="let another kernel serve such tensors, or write this one in PyTorch operations",
        ) from error


def to_tensors(function: Callable[..., Any], holder: list[Any], arrays: Sequence[Any]) -> Any:
    """Return the result of a kernel with tensors for arrays and NumPy's scalars, also within lists, tuples and dicts.

    A tensor takes the memory of an array without other references, and a copy of any other: of a view, of an
    argument, of what the kernel keeps, of what is read-only, and of what has a negative stride.

    Args:
        function: the kernel; named in messages.
        holder: a list of the result alone: it is emptied, so that references to the result can be counted.
        arrays: what the kernel was called with.

    Raises:
        KernelError: an array has a dtype that PyTorch has not, or is of a subclass, whose meaning would be lost.
    """
    return released(kernel_name(function), holder, list(leaves(arrays)))


def kernel_name(function: Callable[..., Any]) -> str:
    """Return what messages call a function."""
    return str(getattr(function, "__name__", None) or repr(function))


def argument_names(function: Callable[..., Any]) -> Iterator[str]:
    """Yield the names of positional arguments; those of `*xs` are `xs[0]`, `xs[1]` and so on."""
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            yield from (f"{parameter.name}[{index}]" for index in range(sys.maxsize))
        yield parameter.name
    yield from (f"argument {index}" for index in range(sys.maxsize))  # too many: the call itself says so


class Unsuitable(Exception):  # noqa: N818 - carries an argument and a reason to where the message is made
    """A tensor that NumPy cannot hold."""


def replaced(label: str, value: Any) -> Any:
    """Return a value with arrays for tensors."""
    if isinstance(value, Tensor):
        return to_array(label, value)
    if isinstance(value, dict):
        return {key: replaced(f"{label}[{key!r}]", item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [replaced(f"{label}[{number}]", item) for number, item in enumerate(value)]
        return rebuilt(type(value), items)
    return value


def rebuilt(kind: type[Any], items: list[Any]) -> Any:
    """Return items in a list, a tuple, or the NamedTuple that they came in."""
    if issubclass(kind, list):
        return items
    return kind(*items) if hasattr(kind, "_fields") else tuple(items)


def to_array(label: str, tensor: Tensor) -> Any:
    """Return one tensor's array."""
    try:
        array = tensor.detach().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:
        described = f"a {type(tensor).__name__} of {tensor.dtype} on {tensor.device}"
        raise Unsuitable(label, f"{described}: {error}") from error
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
    elif hasattr(value, "__array_interface__"):
        yield value


def released(kernel: str, holder: list[Any], taken: list[Any]) -> Any:
    """Return the content of a holder, with tensors for arrays; `taken` are the arrays whose memory is in use."""
    numpy = numpy_module(kernel)
    is_kept = sys.getrefcount(holder[0]) > 2  # the holder's reference, and that of the question
    value = holder[0]
    if isinstance(value, numpy.ndarray):
        array = value if is_own(value, is_kept, taken) else value.copy("K")
        taken.append(array)
        return to_tensor(kernel, array)
    if isinstance(value, numpy.generic):
        return to_tensor(kernel, numpy.asarray(value))
    holder.clear()
    if isinstance(value, dict):
        held = {key: [item] for key, item in value.items()}
        del value
        return {key: released(kernel, one, taken) for key, one in held.items()}
    if isinstance(value, (list, tuple)):
        parts, kind = [[item] for item in value], type(value)
        del value
        return rebuilt(kind, [released(kernel, part, taken) for part in parts])
    return value


def is_own(array: Any, is_kept: bool, taken: Sequence[Any]) -> bool:
    """Return True if the memory of an array belongs to it alone, and a tensor can be laid over it."""
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        return False
    if array.base is None:
        return bool(array.flags.owndata) and not is_kept
    # Numba's own allocation, which no global of a compiled function can keep; a view of an argument has one too.
    allocated = type(array.base).__name__ == "_MemInfo"
    may_share = numpy_module("").may_share_memory
    return allocated and not any(may_share(array, other) for other in taken)


def to_tensor(kernel: str, array: Any) -> Tensor:
    """Return the tensor on an array's memory."""
    expected = "a numpy.ndarray of a dtype that PyTorch has"
    found = f"a {type(array).__module__}.{type(array).__name__} of {array.dtype}"
    if type(array) is numpy_module(kernel).ndarray:
        try:
            return torch.from_numpy(array)
        except (TypeError, ValueError) as error:
            found = f"{found}: {error}"
    do = "convert it in the kernel: numpy.asarray(..., dtype=...)"
    problem = "what the kernel returns cannot become a tensor"
    raise KernelError(kernel, problem, expected=expected, found=found, do=do)


def numpy_module(kernel: str) -> Any:  # Any: NumPy is optional, and imported late
    """Return NumPy."""
    try:
        return importlib.import_module("numpy")
    except ImportError as error:
        raise KernelUnavailable(kernel, "the kernel needs NumPy", found=str(error), do="pip install numpy") from error
