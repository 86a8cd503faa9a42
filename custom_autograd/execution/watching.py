"""Runs a kernel and checks everything about the call: each one at the level `full`, the first of a kind at `cheap`.

Inputs that are not declared as mutated must be as they were. PyTorch counts its own writes; at the level `full` the
contents are compared as well, since NumPy, `.data`, C++ and Triton write uncounted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor

from custom_autograd.core.errors import KernelError
from custom_autograd.execution.bind import Binder
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private.functions import version_of
from custom_autograd.values.contents import Checksum, checksum, is_changed
from custom_autograd.values.results import ResultReader, spans
from custom_autograd.values.tensors import tensors_in


class Watcher:
    """Wraps the kernels of one op, each once."""

    def __init__(self, record: OpRecord, *, compares_contents: bool) -> None:
        self._record = record
        self._compares_contents = compares_contents
        self._read = ResultReader(record.declaration, record.kernels.describe, share=lambda _, tensor: tensor).read
        self._bind = Binder(record.declaration.schema)
        self._fixed = [a.name for a in record.declaration.schema.tensor_arguments if not a.is_mutated]
        self._written = [a.name for a in record.declaration.schema.mutated_arguments]
        self._watched: dict[int, tuple[Callable[..., Any], Callable[..., Any]]] = {}  # by id: some cannot be hashed

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:  # Any: as the schema says, here and below
        """Return the same kernel, watched; itself, where it is watched already."""
        # A list: other threads may add to the table meanwhile.
        if any(function is watched for _, watched in list(self._watched.values())):
            return function
        found = self._watched.get(id(function))
        if found is None:
            found = self._watched[id(function)] = function, self._watch(function)
        return found[1]

    def _watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
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
        version = None if tensor.is_inference() else version_of(tensor)
        return version, checksum(tensor) if self._compares_contents else []

    def _is_written(self, tensor: Tensor, before: State) -> bool:
        version, contents = self._state(tensor)
        return version != before[0] or is_changed(before[1], contents)


def undeclared_write(record: OpRecord, name: str, function: Callable[..., Any]) -> KernelError:
    """Return the error that says that a kernel writes to an input that is not declared as mutated."""
    return KernelError(
        record.name,
        f"the {record.kernels.describe(function)} writes to its input '{name}'",
        declared=record.declaration.location,
        do=f"write to a copy, or declare it: mutates_args=('{name}',)",
    )


def _fixed_tensors(value: Any, written: list[tuple[int, int]]) -> list[Tensor]:  # Any: tensor, list of them, or None
    """Return the tensors in a value that must not be written to: those that share no memory with one that may be."""
    return [tensor for tensor in tensors_in([value]) if not any(map(partial(_overlaps, written), spans(tensor)))]


def _overlaps(written: list[tuple[int, int]], span: tuple[int, int]) -> bool:
    return any(start < span[1] and span[0] < end for start, end in written)


State: TypeAlias = "tuple[int | None, Checksum]"
"""How often a tensor was written to, if it counts that (one of inference mode does not), and its contents."""
