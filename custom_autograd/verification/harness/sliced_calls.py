"""One call of an op by the names of its arguments, on the whole or on slices, with the gradients of its tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.execution.bind import Binder, gather
from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.samples import Sample
from custom_autograd.schema.schema import Schema
from custom_autograd.verification.harness.dispatching import call_overload, repeatable
from custom_autograd.verification.harness.slices import Key

Values: TypeAlias = dict[str, Any]
"""The arguments of a call by name, in the form of users (Any: tensors, lists of tensors, other values)."""

Tensors: TypeAlias = dict[Key, Tensor]

Part: TypeAlias = tuple[Literal["output", "written", "gradient"], Key]
"""What slices are compared by: an output, the new value of a written tensor, or the gradient of an input."""

NamedFunction: TypeAlias = Callable[[Values], object]
"""A call with its arguments by name."""


@dataclass(frozen=True, slots=True)
class SlicedOutcome:
    """What one call leaves.

    Attributes:
        inputs: its floating-point tensors, each a leaf.
        outputs: new tensors, hidden ones included.
        written: the new values of the tensors that the op writes to.
    """

    inputs: Tensors
    outputs: Tensors
    written: Tensors

    @property
    def results(self) -> dict[Part, Tensor]:
        """Return outputs and written tensors."""
        outputs: dict[Part, Tensor] = {("output", key): tensor for key, tensor in self.outputs.items()}
        return {**outputs, **{("written", key): tensor for key, tensor in self.written.items()}}

    def gradients(self, cotangents: Mapping[Part, Tensor]) -> dict[Part, Tensor]:
        """Return the gradient of each input that requires one; zero where nothing connects them."""
        able = {key: tensor for key, tensor in self.inputs.items() if tensor.requires_grad}
        results = self.results
        pairs = [(results[part], cotangent) for part, cotangent in cotangents.items() if results[part].requires_grad]
        found: Sequence[Tensor | None] = [None] * len(able)
        if able and pairs:
            outputs, grads = [y for y, _ in pairs], [u.clone() for _, u in pairs]
            found = torch.autograd.grad(outputs, list(able.values()), grads, allow_unused=True)
        rows = zip(able.items(), found, strict=True)
        return {("gradient", key): torch.zeros_like(x) if grad is None else grad for (key, x), grad in rows}


def values_of(record: OpRecord, sample: Sample) -> Values:
    """Return the arguments of a sample by name, those of containers one by one, defaults included."""
    schema = record.declaration.schema
    flat = adapter_of(record.declaration).around(
        sample, lambda tree, call: call.with_arguments(*tree.flat_call(*call.args, **call.kwargs))
    )
    given = {**dict(gather(schema, flat.args)), **flat.kwargs}
    return {a.name: given.get(a.name, a.default) for a in schema.arguments}


def tensors_of(name: str, value: Any) -> Iterator[tuple[Key, Tensor]]:  # Any: an argument or an output
    """Yield the tensors of an argument or an output."""
    if isinstance(value, Tensor):
        yield (name, 0), value
    elif isinstance(value, (list, tuple)):
        yield from (((name, index), one) for index, one in enumerate(value) if isinstance(one, Tensor))


def op_function(record: OpRecord) -> NamedFunction:
    """Return an op with hidden outputs."""
    call = repeatable(record.declaration.schema, functools.partial(call_overload, record))
    return _by_name(record.declaration.schema, call)


def reference_function(record: OpRecord) -> NamedFunction | None:
    """Return the reference of an op, or None."""
    reference, schema = record.reference(), record.declaration.schema
    return None if reference is None else _by_name(schema, repeatable(schema, reference))


def _by_name(schema: Schema, function: Callable[..., object]) -> NamedFunction:
    binder = Binder(schema)

    def call(values: Values) -> object:
        positional, keywords = binder.user_call(values)
        return function(*positional, **keywords)

    return call


def run(record: OpRecord, function: NamedFunction, values: Values, *, has_gradients: bool = True) -> SlicedOutcome:
    """Call a function on copies of tensors.

    Args:
        record: the op that the function computes.
        function: takes the arguments by name.
        values: the arguments.
        has_gradients: tensors that require grad do so in this call.
    """
    schema = record.declaration.schema
    given, inputs, written = dict(values), Tensors(), Tensors()
    for argument in schema.tensor_arguments:
        value = values[argument.name]
        is_able = has_gradients and argument.is_differentiable
        leaves = {key: _leaf(tensor, is_able=is_able) for key, tensor in tensors_of(argument.name, value)}
        passed = {key: leaf.clone() if argument.is_mutated else leaf for key, leaf in leaves.items()}
        given[argument.name] = with_tensors(value, argument.name, passed)
        inputs.update(leaves)
        written.update(passed if argument.is_mutated else {})
    return SlicedOutcome(inputs, _outputs(schema, function(given)), written)


def with_tensors(value: Any, name: str, tensors: Tensors) -> Any:  # Any: an argument, and the same one
    """Return an argument with other tensors."""
    if isinstance(value, (list, tuple)):
        return [tensors.get((name, index)) for index in range(len(value))]
    return tensors.get((name, 0))


def _leaf(tensor: Tensor, *, is_able: bool) -> Tensor:
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return copy.requires_grad_(is_able and tensor.requires_grad)


def _outputs(schema: Schema, result: object) -> Tensors:
    outputs = schema.fresh_outputs
    is_bare = len(outputs) == 1 and (outputs[0].is_tensor_list or isinstance(result, Tensor))
    found: Sequence[object] = [result] if is_bare else result if isinstance(result, (list, tuple)) else []
    pairs = zip(outputs, found, strict=False)
    return {key: tensor for output, value in pairs for key, tensor in tensors_of(output.name, value)}
