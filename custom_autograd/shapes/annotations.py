"""A line from jaxtyping's annotations: `x: Float[Tensor, "*b d"]`, where `along=` says what is in brackets."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Collection, Sequence
from typing import Any

from custom_autograd.core.hints import hints_of
from custom_autograd.core.locations import unwrap
from custom_autograd.core.schema import Schema
from custom_autograd.shapes.contract import LineMismatch

DIM = re.compile(r"(?:\w+=)?(?P<text>\.\.\.|[#*]*\w+)")
"""What this notation has of jaxtyping's; it has `name=4` for a literal, and `?` and sums besides."""


def line_of_annotations(function: Callable[..., Any], schema: Schema, along: Sequence[str]) -> str:
    """Return the line that the annotations of a function say.

    Args:
        function: the op's.
        schema: of the op.
        along: the names of dimensions that go in brackets.

    Raises:
        LineMismatch: a tensor has no such annotation, or one that this notation cannot say; or nothing has a name.
    """
    try:
        hints = hints_of(unwrap(function))
    except (NameError, TypeError, AttributeError):
        hints = dict(getattr(unwrap(function), "__annotations__", {}))
    seen: set[str] = set()
    inputs = [_item(a.name, hints.get(a.name), along, seen, is_optional=a.is_optional) for a in schema.tensor_arguments]
    outputs = schema.fresh_outputs
    annotations = _outputs(hints.get("return"), len(outputs))
    returned = [_item(o.name, one, along, seen) for o, one in zip(outputs, annotations, strict=True)]
    for name in along:
        if name not in seen:
            raise LineMismatch(f"along= names '{name}', which no annotation has", ", ".join(sorted(seen)))
    return f"{', '.join(inputs)} -> {', '.join(returned)}"


def _outputs(annotation: Any, count: int) -> list[Any]:  # Any: annotations
    fields = (
        inspect.get_annotations(annotation) if isinstance(annotation, type) and hasattr(annotation, "_fields") else {}
    )
    if fields:
        return list(fields.values())
    several = list(typing.get_args(annotation)) if typing.get_origin(annotation) is tuple else [annotation]
    return several if len(several) == count else [annotation] * count


def _item(name: str, annotation: Any, along: Collection[str], seen: set[str], *, is_optional: bool = False) -> str:
    dims = _dims(annotation)
    if dims is None:
        problem = f"'{name}' has no annotation that says its dimensions, and along= reads them there"
        raise LineMismatch(problem, "jaxtyping's, such as Float[Tensor, 'batch features']", "or give the line: shapes=")
    parts = [_dim(name, text, along, seen) for text in dims.split()]
    return f"{name}{'?' * is_optional}: {' '.join(parts)}".rstrip() + ("" if parts else " ")


def _dims(annotation: Any) -> str | None:  # Any: an annotation
    """Return the text of jaxtyping's dimensions, or None."""
    found = getattr(annotation, "dim_str", None)
    if isinstance(found, str):
        return found
    inner = (_dims(one) for one in typing.get_args(annotation))
    return next((one for one in inner if one is not None), None)


def _dim(name: str, text: str, along: Collection[str], seen: set[str]) -> str:
    found = DIM.fullmatch(text)
    if found is None:
        problem = f"the annotation of '{name}' has the dimension '{text}', which a line of shapes does not have"
        raise LineMismatch(problem, "names, numbers, '*name', '#name', '_' and '...'", "give the line: shapes=")
    body = found["text"].lstrip("#*")
    if body.startswith("_"):
        return "..." if "*" in found["text"] else "_"
    seen.add(body)
    return f"[{found['text']}]" if body in along else found["text"]
