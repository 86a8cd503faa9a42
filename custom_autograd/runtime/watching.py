"""Runs a kernel and checks everything about the call: each one at the level `full`, the first of a kind at `cheap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from custom_autograd.core.errors import KernelError
from custom_autograd.core.messages import format_message
from custom_autograd.registration.registry import Entry
from custom_autograd.runtime.bind import Binder
from custom_autograd.runtime.results import ResultReader, spans
from custom_autograd.runtime.tensors import tensors_in
from custom_autograd.torch_private.functions import version_of


class Watcher:
    """Wraps the kernels of one op, each once."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._read = ResultReader(entry.declaration, entry.kernels.describe, share=lambda _, tensor: tensor).read
        self._bind = Binder(entry.declaration.schema)
        self._fixed = [a.name for a in entry.declaration.schema.tensor_arguments if not a.is_mutated]
        self._written = [a.name for a in entry.declaration.schema.mutated_arguments]
        self._watched: dict[int, tuple[Callable[..., Any], Callable[..., Any]]] = {}  # by id: some cannot be hashed

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:  # Any: as the schema says, here and below
        """The same kernel, watched; itself, where it is watched already."""
        if any(function is watched for _, watched in self._watched.values()):
            return function
        found = self._watched.get(id(function))
        if found is None:
            found = self._watched[id(function)] = function, self._watch(function)
        return found[1]

    def _watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            arguments = self._bind.given(*args, **kwargs)
            written = {span for name in self._written for span in spans(arguments[name])}
            tensors = {name: _counting(arguments[name], written) for name in self._fixed}
            before = {name: [version_of(tensor) for tensor in its] for name, its in tensors.items()}
            result = self._read(function(*args, **kwargs), arguments, function)
            for name, versions in before.items():
                if versions != [version_of(tensor) for tensor in tensors[name]]:
                    raise self._undeclared(name, function)
            return result

        watched.kernel_function = function  # type: ignore[attr-defined]  # for what asks which kernel it is
        return watched

    def _undeclared(self, name: str, function: Callable[..., Any]) -> KernelError:
        return KernelError(
            format_message(
                self._entry.name,
                f"the {self._entry.kernels.describe(function)} writes to its input '{name}'",
                declared=self._entry.declaration.location,
                do=f"write to a copy, or declare it: mutates_args=('{name}',)",
            )
        )


def _counting(value: Any, written: set[tuple[int, int]]) -> list[Tensor]:  # Any: a tensor, a list of tensors, or None
    """The tensors in a value that must not be written to, and count if they are: those of inference mode do not."""
    return [t for t in tensors_in([value]) if not t.is_inference() and written.isdisjoint(spans(t))]
