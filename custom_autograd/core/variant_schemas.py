"""The in-place variant and the out variant of a schema, and why there is none."""

from __future__ import annotations

import re
from dataclasses import replace

from custom_autograd.core.messages import quote
from custom_autograd.core.schema import Argument, Output, Schema

INPLACE = "inplace"
OUT = "out"
SUFFIXES = {INPLACE: "_", OUT: "_out"}


def find_problem(schema: Schema, kind: str) -> str | None:
    """Return why an op of this schema has no such variant, or None if it has one."""
    if schema.mutated_arguments:
        return f"it writes to {quote(a.name for a in schema.mutated_arguments)} itself"
    if schema.is_view:
        return "it returns a view, which is not new memory"
    if schema.is_one_tuple:
        return "it returns a tuple of one"
    return _no_inplace(schema) if kind == INPLACE else _no_out(schema)


def _no_inplace(schema: Schema) -> str | None:
    first, visible = next(iter(schema.arguments), None), schema.visible_outputs
    if first is None or first.type != "Tensor" or first.is_keyword_only:
        return "its first argument is not a tensor"
    if len(visible) != 1:
        return f"it returns {len(visible)} values, and one tensor can hold one"
    if visible[0].type != "Tensor":
        return f"its output '{visible[0].name}' is not a tensor: {visible[0].type}"
    return None


def _no_out(schema: Schema) -> str | None:
    if not schema.visible_outputs:
        return "it returns nothing"
    for output in schema.visible_outputs:
        if output.type != "Tensor":
            return f"its output '{output.name}' is not a tensor: {output.type}"
    taken = sorted({*out_names(schema), OUT} & set(schema.argument_names))
    return f"it has an argument '{taken[0]}' already" if taken else None


def out_names(schema: Schema) -> tuple[str, ...]:
    """Return the keywords of the out variant: `out`, or where there are several outputs their names."""
    visible = schema.visible_outputs
    return (OUT,) if len(visible) == 1 else tuple(output.name for output in visible)


def variant_of(schema: Schema, kind: str) -> Schema:
    """Return the schema of a variant that the op can have."""
    return _inplace(schema) if kind == INPLACE else _out(schema)


def _inplace(schema: Schema) -> Schema:
    first, *rest = schema.arguments
    given, _ = _split(schema)
    text = f"({re.sub(rf'^Tensor {first.name}', f'Tensor(a!) {first.name}', given)}) -> Tensor(a!)"
    written = replace(first, is_mutated=True)
    return Schema((written, *rest), (_handed_back(first.name),), text)


def _out(schema: Schema) -> Schema:
    names = out_names(schema)
    given, is_behind_star = _split(schema)
    annotations = [f"Tensor(o{index}!)" for index in range(len(names))]
    added = [f"{annotation} {name}" for annotation, name in zip(annotations, names, strict=True)]
    parts = [*([given] if given else []), *([] if is_behind_star else ["*"]), *added]
    result = annotations[0] if len(names) == 1 else f"({', '.join(annotations)})"
    written = [
        Argument(name, "Tensor", is_keyword_only=True, is_mutated=True, is_differentiable=True) for name in names
    ]
    outputs = tuple(_handed_back(name) for name in names)
    named_tuple = None if schema.hidden_outputs else schema.named_tuple
    return Schema((*schema.arguments, *written), outputs, f"({', '.join(parts)}) -> {result}", named_tuple)


def _split(schema: Schema) -> tuple[str, bool]:
    """Return the arguments as the schema spells them, and whether they end behind a star."""
    given = schema.text[1 : schema.text.rindex(" -> ")].rstrip().removesuffix(")")
    return given.strip(), any(argument.is_keyword_only for argument in schema.arguments)


def _handed_back(name: str) -> Output:
    return Output(name, "Tensor", is_differentiable=True, alias_of=name)
