"""Runs a kernel and checks everything about the call: each one at the level `full`, the first of a kind at `cheap`.

Inputs that are not declared as mutated must be as they were. PyTorch counts its own writes; at the level `full` the
contents are compared as well, since NumPy, `.data`, C++ and Triton write uncounted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from custom_autograd.core.errors import KernelError
from custom_autograd.core.metadata import is_wrapper
from custom_autograd.execution.bind import Binder
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private import functions
from custom_autograd.torch_private.functions import version_of
from custom_autograd.values.kernel_results import ResultReader, spans
from custom_autograd.values.tensors import tensors_in

# Checksums of what tensors hold, which notice writes that PyTorch does not count: through NumPy, `.data` or a pointer.
#
# A checksum takes one pass over the memory and 3 MB more, however large the tensor is; only if the elements lie
# apart it takes a copy of them, which is freed at once. A copy to compare with would take as much memory again.
# It is computed on bits, so that NaN equals itself and any dtype will do. Each word is mixed with its position by a
# one-to-one function before the sum: a change of one word is always noticed, one of several words but for one case in
# 2**64, a reordering included.


Checksum = list[Tensor]
"""One number for each MiB of memory, on its device; a smaller memory itself, which is quicker."""


def checksum(tensor: Tensor) -> Checksum:
    """Return what changes with the contents of a tensor; nothing if it has no memory that can be read."""
    with torch.no_grad(), functions.without_torch_function():
        return [number for part in _parts(tensor) for number in _sums(_words(part))]


def is_changed(before: Checksum, after: Checksum) -> bool:
    """Return True if two checksums of one tensor differ."""
    return not all(map(torch.equal, before, after))


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the strided tensors that hold what a tensor holds."""
    if is_wrapper(tensor):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]  # its class has it: `is_wrapper`
        inner = [getattr(tensor, name) for name in names]
    elif tensor.layout is torch.strided:
        if spans(tensor) and not tensor.is_nested and not _is_being_captured(tensor):
            yield tensor
        return
    else:
        inner = functions.sparse_parts(tensor)
    for part in inner:
        if isinstance(part, Tensor):
            yield from _parts(part)


def _is_being_captured(tensor: Tensor) -> bool:
    """Return True while a graph of the device is captured, such as a CUDA graph, when no result can be looked at."""
    capturing = getattr(getattr(torch, tensor.device.type, None), "is_current_stream_capturing", None)
    return capturing is not None and bool(capturing())


def _words(tensor: Tensor) -> Tensor:
    """Return the memory of a strided tensor as integers, each element once at least.

    Of any dtype, conjugated or not.
    """
    size = tensor.element_size()
    dims = [(n, stride * size) for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if n != 1 and stride]
    if math.prod(tensor.shape) == 0:
        dims = [(0, size)]
    dims, run = _split_run(dims, size)
    start = tensor.storage_offset() * size
    word = math.gcd(8, run, start, tensor.untyped_storage().data_ptr(), *(stride for _, stride in dims))
    dims.append((run // word, word))
    words = torch.empty(0, dtype=WORDS[word], device=tensor.device)
    shape, strides = [n for n, _ in dims], [stride // word for _, stride in dims]
    return words.set_(tensor.untyped_storage(), start // word, shape, strides).reshape(-1)


def _split_run(dims: list[tuple[int, int]], size: int) -> tuple[list[tuple[int, int]], int]:
    """Return the sizes and strides (bytes) that remain, and how many bytes are contiguous within them."""
    left = sorted(dims, key=lambda dim: dim[1])
    while left and left[0][1] == size:
        size *= left.pop(0)[0]
    return left[::-1], size


def _sums(words: Tensor) -> Iterator[Tensor]:
    if words.numel() <= PIECE:
        yield words.clone()
        return
    positions = torch.arange(PIECE, device=words.device) * FACTORS[0]
    for piece in words.split(PIECE):
        mixed = (piece ^ positions[: piece.numel()]).mul_(FACTORS[1])
        mixed ^= (mixed >> 31) & 0x1FFFFFFFF  # `>>` repeats the sign
        yield mixed.mul_(FACTORS[2]).sum()


WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
PIECE = 2**17
FACTORS = (-7046029254386353131, -4658895280553007687, -7723592293110705685)
"""Odd numbers with bits all over, of splitmix64."""


class Watcher:
    """Makes a kernel one whose calls are checked in full."""

    def __init__(self, record: OpRecord, *, compares_contents: bool) -> None:
        self._record = record
        self._compares_contents = compares_contents
        self._read = ResultReader(record.declaration, record.kernels.describe, share=lambda _, tensor: tensor).read
        self._bind = Binder(record.declaration.schema)
        self._fixed = [a.name for a in record.declaration.schema.tensor_arguments if not a.is_mutated]
        self._written = [a.name for a in record.declaration.schema.mutated_arguments]

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:  # Any: as the schema declares
        """Return the same kernel, watched."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            arguments = self._bind.given(*args, **kwargs)
            written = [span for name in self._written for span in spans(arguments[name])]
            fixed = {name: _fixed_tensors(arguments[name], written) for name in self._fixed}
            before = {name: [self._state(tensor) for tensor in tensors] for name, tensors in fixed.items()}
            result = self._read(function(*args, **kwargs), arguments, function)
            for name, tensors in fixed.items():
                if any(map(self._is_written, tensors, before[name])):
                    raise undeclared_write(self._record, name, function)
            return result

        watched.kernel_function = function  # type: ignore[attr-defined]  # for code that needs to know which kernel it is
        return watched

    def _state(self, tensor: Tensor) -> State:
        is_compressed = tensor.layout in functions.COMPRESSED
        version = None if tensor.is_inference() or is_compressed else version_of(tensor)
        return version, checksum(tensor) if self._compares_contents or is_compressed else []

    def _is_written(self, tensor: Tensor, before: State) -> bool:
        version, contents = self._state(tensor)
        return version != before[0] or is_changed(before[1], contents)


def undeclared_write(record: OpRecord, name: str, function: Callable[..., Any]) -> KernelError:
    """Return the error for the case that a kernel writes to an input that is not declared as mutated."""
    return record.declaration.error(
        KernelError,
        f"the {record.kernels.describe(function)} writes to its input '{name}'",
        do=f"write to a copy, or declare it: mutates_args=('{name}',)",
    )


def _fixed_tensors(value: Any, written: list[tuple[int, int]]) -> list[Tensor]:  # Any: tensor, list of them, or None
    """Return the tensors in a value that must not be written to: those that share no memory with one that may be."""
    return [tensor for tensor in tensors_in([value]) if not any(map(partial(_overlaps, written), spans(tensor)))]


def _overlaps(written: list[tuple[int, int]], span: tuple[int, int]) -> bool:
    return any(start < span[1] and span[0] < end for start, end in written)


State: TypeAlias = "tuple[int | None, Checksum]"
"""The version of a tensor, or None if it tells nothing (inference mode, compressed layouts); then its contents."""
