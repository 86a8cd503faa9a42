"""An op between the casts that its autocast policy states, made by hand: what a call under autocast should compute."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from custom_autograd.containers.argument_tree import ArgumentTree
from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.execution.bind import gather
from custom_autograd.registration.policy_types import Cast, CastPolicy
from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.samples import Sample
from custom_autograd.schema.schema import Schema
from custom_autograd.verification.harness.targets import Function, Target

Arguments: TypeAlias = Sequence[object]
ByName: TypeAlias = dict[str, Any]  # Any: arguments of any type
Calls: TypeAlias = tuple[
    Callable[[Schema, Arguments, ByName], ByName],
    Callable[[Schema, ByName, Arguments, ByName], tuple[Arguments, ByName]],
    Callable[[object], object],
]
"""A call -> its arguments by the names of the schema; other values of those -> a call; a result -> the flat one."""


def cast_by_hand(target: Target, record: OpRecord, policy: CastPolicy) -> Function:
    """Return the call without autocast, between the casts that autocast should make; written without dispatch keys."""
    schema, adapter = record.declaration.schema, adapter_of(record.declaration)
    outputs = [output.name for output in schema.visible_outputs]
    flat: Calls = (_read, _write, _take)
    read, write, take = adapter.around(flat, _containers)

    def call(*args: object, **kwargs: object) -> object:
        given = read(schema, args, kwargs)
        first = [x.dtype for name in schema.argument_names for x in _floating(given.get(name))]
        promoting = [
            x for name in given for x in Sample(given[name]).tensors() if policy.arguments.get(name) == "promote"
        ]
        widest = policy.promoted(x.dtype for x in promoting if policy.is_castable(x))
        values = {name: _to(given[name], policy, policy.arguments.get(name, "keep"), widest) for name in given}
        positional, keywords = write(schema, values, args, kwargs)
        found = take(target.call(*positional, **keywords))
        results = [found] if len(outputs) == 1 else cast(Sequence[object], found or ())
        before = next(iter(first), None)
        return [
            _to(value, policy, policy.outputs.get(name, "keep"), before)
            for name, value in zip(outputs, results, strict=True)
        ]

    return call


def _read(schema: Schema, args: Arguments, kwargs: ByName) -> ByName:
    """Return the arguments of a call by the names of the schema."""
    return {**dict(gather(schema, args)), **kwargs}


def _write(schema: Schema, values: ByName, args: Arguments, kwargs: ByName) -> tuple[Arguments, ByName]:
    """Return the same call with other values."""
    positional = [one for name, _ in gather(schema, args) for one in _spread(schema, name, values[name])]
    return positional, {name: values[name] for name in kwargs}


def _take(result: object) -> object:
    """Return what a call returned, as the schema has it."""
    return result


def _containers(tree: ArgumentTree, _: Calls) -> Calls:
    """Return the three for an op with containers."""

    def read(schema: Schema, args: Arguments, kwargs: ByName) -> ByName:
        positional, keywords = tree.flat_call(*args, **kwargs)
        return {**dict(zip(schema.argument_names, positional, strict=False)), **keywords}

    def write(schema: Schema, values: ByName, args: Arguments, kwargs: ByName) -> tuple[Arguments, ByName]:
        return tree.arguments(values)

    return read, write, functools.partial(_take_containers, tree)


def _spread(schema: Schema, name: str, value: object) -> Sequence[object]:
    return cast(Sequence[object], value) if schema.argument(name).is_variadic else [value]


def _floating(value: object) -> list[Tensor]:
    return [x for x in Sample(value).tensors() if x.is_floating_point()]


def _take_containers(tree: ArgumentTree, result: object) -> object:
    results = tree.results
    if results is None:
        return result
    if not results.hidden:
        taken: object = results.take(result)
        return taken
    items = (result,) if len(results.visible) == 1 else cast(Sequence[object], result)
    found = [one for node, item in zip(results.visible, items, strict=True) for one in node.take(item)]
    return found if len(found) != 1 else found[0]


def _to(value: object, policy: CastPolicy, wanted: Cast, other: torch.dtype | None) -> object:
    """Return a tensor, or all in a container, cast as one entry of a policy says."""
    dtype = policy.dtype_of(wanted, other)
    return Sample(value).map(lambda x: x if dtype is None or not policy.is_castable(x) else x.to(dtype)).args[0]
