"""Writes the look at what a kernel returned: constant time where it is as it should be."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from custom_autograd.calls.source import Source, tuple_of
from custom_autograd.core.schema import Schema
from custom_autograd.torch_private.functions import is_view


def write_reading(source: Source, schema: Schema, condition: str) -> None:
    """Write a look at `$result` that takes constant time, and what reads it properly where that finds anything odd.

    Args:
        source: to write to.
        schema: of the op.
        condition: source that is true where outputs are compared with inputs.
    """
    pairs = ", ".join(f'"{argument.name}": {argument.name}' for argument in schema.tensor_arguments)
    reading = f"$result = $read_result($result, {{{pairs}}}, $function, is_checked={condition})"
    if len(schema.outputs) == 1 and schema.outputs[0].type == "Tensor[]" and schema.outputs[0].alias_of is None:
        inputs = tuple_of([argument.name for argument in schema.tensor_arguments])
        with source.block(f"if $type($result) is not $list or not $are_new($result, {inputs}, {condition})"):
            source.line(reading)
        return
    if not schema.outputs:
        with source.block("if $result is not None"):
            source.line(reading)
        return
    if any(output.type != "Tensor" or output.alias_of is not None for output in schema.outputs):
        source.line(reading)
        return
    shapeless, shared = _oddities(schema)
    asked = {"True": shared, "False": []}.get(condition, [f"({condition} and ({' or '.join(shared)}))"])
    with source.block(f"if {' or '.join([*shapeless, *asked])}"):
        source.line(reading)


def are_new(results: list[Any], inputs: tuple[Any, ...], is_checked: bool) -> bool:
    """Return True if all results are plain tensors, and none is an input, a view or there twice (Any: of a kernel)."""
    if not is_checked:
        return all(type(result) is Tensor for result in results)
    seen = {id(tensor) for value in inputs for tensor in (value if isinstance(value, (list, tuple)) else (value,))}
    for result in results:
        if type(result) is not Tensor or is_view(result) or id(result) in seen:
            return False
        seen.add(id(result))
    return True


def _oddities(schema: Schema) -> tuple[list[str], list[str]]:
    """Return tests of results that are not as many plain tensors as they should be, or that may share memory."""
    count = len(schema.outputs)
    names = ["$result"] if count == 1 else [f"$result[{index}]" for index in range(count)]
    inputs = [argument.name for argument in schema.tensor_arguments if not argument.is_tensor_list]
    shapeless = [] if count == 1 else [f"$type($result) is not $tuple or $len($result) != {count}"]
    shapeless += [f"$type({name}) is not $Tensor" for name in names]
    shared = []
    for index, name in enumerate(names):
        shared += [f"{name} is {other}" for other in [*inputs, *names[:index]]]
        shared.append(f"{name}._is_view()")
    return [*shapeless, *(shared if schema.may_return_inputs else [])], shared  # the dispatcher must not see an input
