"""A second op of the dispatcher for ops whose writes PyTorch cannot functionalize: it returns what the op writes.

add_(Tensor(a!) x, Tensor y) -> (Tensor(a!), int)         the op, in eager calls and exported programs
add___functional(Tensor x, Tensor y) -> (int, Tensor[])   in graphs: its own outputs, then the written tensors

A graph holds no writes, so AOTAutograd turns each call into one that returns new tensors, and copies them back.
PyTorch does that for ops that write to tensors and return new ones. It raises for an op that returns what it wrote to,
or a list, an optional tensor or a number, that writes to a list with None, or that has an argument named 'mode'.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import torch

from custom_autograd.core.errors import KernelError
from custom_autograd.execution.bind import Binder
from custom_autograd.registration.dispatcher_library import opened
from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.names import DEFAULT
from custom_autograd.schema.schema import Schema
from custom_autograd.torch_private import dispatch, transforms
from custom_autograd.torch_private.compiler import outside_compilation
from custom_autograd.torch_private.definitions import register_fake
from custom_autograd.values.tensors import copies, may_overlap, tensors_in

FUNCTIONAL = "__functional"
"""End of the name of the second op."""

WRITTEN = re.compile(r"\(\w+!\)")
TAKEN = frozenset({"mode", "_mutable_op", "_all_bases"})
"""Names of parameters of PyTorch's functions that functionalize a call."""


def is_needed(schema: Schema, tags: tuple[torch.Tag, ...]) -> bool:
    """Return True if an op writes to arguments and PyTorch cannot functionalize it."""
    written = schema.mutated_arguments
    if not written or schema.is_view:
        return False
    if not TAKEN.isdisjoint(schema.argument_names) or any(argument.type == "Tensor?[]" for argument in written):
        return True
    is_handed_back = not dispatch.HANDED_BACK.isdisjoint(tags)
    return not is_handed_back and any(o.type != "Tensor" or o.alias_of is not None for o in schema.outputs)


def text_of(schema: Schema) -> str:
    """Return the schema of the second op."""
    given, _, spelled = schema.text.rpartition(" -> ")
    listed = spelled[1:-1] if spelled.startswith("(") else spelled
    types = [one.split()[0] for one in listed.split(", ")] if schema.outputs else []
    fresh = [one for output, one in zip(schema.outputs, types, strict=True) if output.alias_of is None]
    returned = [*fresh, "Tensor[]"]
    result = returned[0] if len(returned) == 1 else f"({', '.join(returned)})"
    return f"{WRITTEN.sub('', given)} -> {result}"


def attach(record: OpRecord) -> None:
    """Define the second op, once, and make functionalization call it."""
    if FUNCTIONAL in record.definition.attached:
        return
    library, name = record.definition.library, record.definition.name.suffixed(FUNCTIONAL)
    assert library is not None  # the op is defined before anything is attached to it
    tags = {torch.Tag.pt2_compliant_tag, *record.declaration.tags} - dispatch.HANDED_BACK
    library.define(f"{name.qualifier}{text_of(record.declaration.schema)}", tags=tuple(tags))
    overload = _second_op(record)
    run = _on_copies(record)
    library.impl(name.qualifier, torch.no_grad()(run), "CompositeExplicitAutograd")
    library.impl(name.qualifier, _autograd(overload, run), "Autograd", with_keyset=True)
    register_fake(library, str(name), run, record.declaration.location)
    library.impl(record.definition.qualifier, _functionalize(record, overload), "Functionalize")
    record.definition.attached.add(FUNCTIONAL)


def _on_copies(record: OpRecord) -> Callable[..., Any]:  # Any: as the schemas say, here and below
    """Return what the second op runs: the op, on copies of what it writes to."""
    schema = record.declaration.schema
    bind, written = Binder(schema), [argument.name for argument in schema.mutated_arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        values = bind.raw(*args, **kwargs)
        values.update(zip(written, copies([values[name] for name in written]), strict=True))
        positional, keywords = bind.call(values)
        results = _listed(opened(record)(*positional, **keywords), len(schema.outputs))
        fresh = [one for output, one in zip(schema.outputs, results, strict=True) if output.alias_of is None]
        new = tensors_in([values[name] for name in written])
        return (*fresh, new) if fresh else new

    return run


def _autograd(overload: dispatch.OpOverload, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel that lets the op record itself, if derivatives are needed."""

    @outside_compilation
    def autograd(keyset: Any, /, *args: Any, **kwargs: Any) -> Any:
        tensors = tensors_in([*args, *kwargs.values()])
        is_recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if is_recorded or transforms.is_transforming() or any(map(transforms.has_tangent, tensors)):
            return run(*args, **kwargs)
        return dispatch.redispatch(overload, keyset & dispatch.BELOW_AUTOGRAD, *args, **kwargs)

    return autograd


def _functionalize(record: OpRecord, overload: dispatch.OpOverload) -> Callable[..., Any]:
    """Return the kernel of the op that calls the second one, and copies what that writes back."""
    schema, bind = record.declaration.schema, Binder(record.declaration.schema)

    @outside_compilation
    def functionalize(*args: Any, **kwargs: Any) -> Any:
        values = bind.raw(*args, **kwargs)
        _refuse_shared_memory(record, values)
        positional, keywords = bind.call(values)
        *fresh, new = _listed(overload(*positional, **keywords), len(schema.fresh_outputs) + 1)
        for tensor, result in zip(tensors_in([values[a.name] for a in schema.mutated_arguments]), new, strict=True):
            tensor.copy_(result)
        remaining = iter(fresh)
        results = [next(remaining) if o.alias_of is None else values[o.alias_of] for o in schema.outputs]
        if schema.is_one_tuple or len(results) > 1:
            return tuple(results)
        return results[0] if results else None

    return functionalize


def in_mode(record: OpRecord) -> Callable[..., Any]:
    """Return what the mode of AOTAutograd runs in place of the op: `(mode, func, types, args, kwargs)`.

    PyTorch's own looks at the schema after the kernel, and raises for an output that is written among others that are
    new.
    """
    functionalize = _functionalize(record, _second_op(record))

    def in_mode(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        del func, types
        with mode:
            return functionalize(*args, **(kwargs or {}))

    return in_mode


def _second_op(record: OpRecord) -> dispatch.OpOverload:
    name = record.definition.name.suffixed(FUNCTIONAL)
    found: dispatch.OpOverload = getattr(
        getattr(getattr(torch.ops, name.namespace), name.name), name.overload or DEFAULT
    )
    return found


def _listed(result: Any, count: int) -> list[Any]:
    """Return the outputs of a call of the dispatcher."""
    return [] if count == 0 else [result] if count == 1 else list(result)


def _refuse_shared_memory(record: OpRecord, values: dict[str, Any]) -> None:
    """Raise if a written tensor shares elements with another argument: in a graph each is a value of its own."""
    written = {argument.name for argument in record.declaration.schema.mutated_arguments}
    given = [(name, tensor) for name, value in values.items() for tensor in tensors_in([value])]
    for (name, tensor), (other_name, other) in itertools.combinations(given, 2):
        if (name in written or other_name in written) and may_overlap(tensor, other):
            first, second = (name, other_name) if name in written else (other_name, name)
            raise record.declaration.error(
                KernelError,
                f"the op writes to '{first}', which shares memory with '{second}', in a graph",
                expected="arguments that do not share memory with what is written",
                do=f"pass a clone() as '{second}'",
            )
