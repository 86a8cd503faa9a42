"""What a line must say of an op, also one that is read from the annotations of jaxtyping."""

from __future__ import annotations

import re
import typing
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from custom_autograd.core.locations import unwrap
from custom_autograd.core.messages import quote, suggest
from custom_autograd.core.signatures import read_annotations
from custom_autograd.schema.annotations import hints_of
from custom_autograd.schema.schema import Schema
from custom_autograd.shapes.notation import Item, Line

INTEGERS = ("int", "SymInt")
MOST_DIMS = 1_000
"""Dimensions of a tensor in a line; a function may write more of them for an argument that is wrong."""


class LineMismatch(Exception):  # noqa: N818 - it becomes an error of the op
    """A line does not fit the op.

    Attributes:
        problem: what is wrong.
        expected: what would have been right.
        do: what to do about it.
    """

    def __init__(self, problem: str, expected: str | None = None, do: str | None = None) -> None:
        super().__init__(problem)
        self.problem, self.expected, self.do = problem, expected, do


def numbers_of(line: Line, schema: Schema) -> tuple[str, ...]:
    """Return the int arguments of an op that are names of dimensions in a line."""
    integers = {argument.name for argument in schema.arguments if argument.type in INTEGERS}
    return tuple(name for name in line.names() if name in integers)


def check_line(line: Line, schema: Schema) -> None:
    """Check that a line fits an op."""
    arguments = {argument.name: argument for argument in schema.tensor_arguments}
    outputs = {output.name: output for output in schema.fresh_outputs}
    for item in (*line.inputs, *line.outputs):
        if len(item.dims) > MOST_DIMS:
            problem = f"'{item.name}' has {len(item.dims):,} dimensions in the line"
            raise LineMismatch(
                problem,
                f"at most {MOST_DIMS:,}",
                "look at the function that returns it, and at the arguments that it is called with",
            )
    _check_names("input", line.inputs, list(arguments), [a.name for a in schema.arguments], line)
    _check_names("output", line.outputs, list(outputs), [], line)
    for item in line.inputs:
        if item.is_optional and not arguments[item.name].is_optional:
            problem = f"the line marks '{item.name}' as optional, and the op always has it"
            raise LineMismatch(problem, do=f"leave out the '?' of '{item.name}'")
    for item in line.outputs:
        if any(dim.is_broadcast for dim in item.dims):
            raise LineMismatch(f"output '{item.name}' has a '#', and only inputs are broadcast")
    _check_known(line, schema)
    _check_cuts(line, schema)


def _check_cuts(line: Line, schema: Schema) -> None:
    """Raise if a dimension is not in brackets, although no tensor can be cut along it."""
    for name in numbers_of(line, schema):
        if name not in line.along:
            problem = f"the dimension '{name}' is an argument of the op, whose value is not that of a slice"
            raise LineMismatch(problem, do=f"write [{name}]: it cannot be cut")
    for item in (*line.inputs, *line.outputs):
        counts = Counter(name for dim in item.dims for name in dim.names)
        twice = next((name for name, count in counts.items() if count > 1 and name not in line.along), None)
        if twice is not None:
            problem = f"'{item.name}' has the dimension '{twice}' twice: slices would be blocks on a diagonal"
            raise LineMismatch(problem, do=f"write [{twice}]: it cannot be cut")


def _check_names(what: str, items: Sequence[Item], valid: list[str], others: Iterable[str], line: Line) -> None:
    given = [item.name for item in items]
    for name in given:
        if name in valid:
            continue
        problem = f"the line has an {what} '{name}', which the op does not have"
        if name in others:
            problem = f"the line gives dimensions to '{name}', which is not a tensor"
        do = "use its names in the line, or name it alike in outputs=" if what == "output" else None
        raise LineMismatch(problem, quote(valid), suggest(name, valid) or do)
    missing = [name for name in valid if name not in given]
    if missing:
        problem = f"the line declares nothing of the {what} {quote(missing)}"
        raise LineMismatch(problem, do=f"add '{missing[0]}: ...' if its shape is not to be described")


def _check_known(line: Line, schema: Schema) -> None:
    """Raise if a size that an output has does not follow from the inputs."""
    known = {dim.name for item in line.inputs for dim in item.dims if dim.name is not None} | set(
        numbers_of(line, schema)
    )
    products = [dim for item in line.inputs for dim in item.dims if len(dim.factors) > 1 or dim.plus]
    for _ in products:
        for dim in products:
            unknown = [name for name in dim.names if name not in known]
            known.update(unknown if len(unknown) == 1 else ())
    for item in line.inputs:
        _check_each(item, known, "input", "in a product of unknown factors")
    for item in line.outputs:
        _check_each(item, known, "output", "which no input has")


def _check_each(item: Item, known: set[str], what: str, why: str) -> None:
    for dim in item.dims:
        unknown = [name for name in dim.names if name not in known]
        if unknown:
            raise LineMismatch(
                f"the {what} '{item.name}' has the dimension '{unknown[0]}', {why}",
                "dimensions of inputs, or int arguments of the op",
                f"write _ for one that does not follow from the inputs, or give '{unknown[0]}' to an input",
            )


DIM = re.compile(r"(?:\w+=)?(?P<text>\.\.\.|[#*]*\w+)")
"""What this notation has of jaxtyping's; it has `name=4` for a literal, and `?` and sums besides."""


def line_of_annotations(function: Callable[..., Any], schema: Schema, along: Sequence[str]) -> str:
    """Return the line that the annotations of a function say."""
    try:
        hints = hints_of(unwrap(function))
    except (NameError, TypeError, AttributeError):
        hints = read_annotations(unwrap(function))
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
    fields = read_annotations(annotation) if isinstance(annotation, type) and hasattr(annotation, "_fields") else {}
    if fields:
        return list(fields.values())
    several = list(typing.get_args(annotation)) if typing.get_origin(annotation) is tuple else [annotation]
    return several if len(several) == count else [annotation] * count


def _item(name: str, annotation: Any, along: Collection[str], seen: set[str], *, is_optional: bool = False) -> str:
    dims = _dims(annotation)
    if dims is None:
        problem = f"'{name}' has no annotation with its dimensions, and along= reads them there"
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
