"""The parts of a line of shapes, as data; expressions over its names, and where the sizes of a tensor stand.

    x: *b [d], weight: [d] -> out: *b [d], rstd: *b 1

name     one dimension                               _    one dimension of any size, which is not compared
*name    any number of dimensions                    ...  any number of those
#name    the size may also be 1, and leading such dimensions may be absent (also #*name)
(k g)    a product, the outermost factor first       1    a literal size
[n+1]    a size that differs by a constant, in brackets only
[d]      the op computes along d: slices of its inputs do not give slices of its outputs
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension of a tensor, or a group of any number of them.

    Attributes:
        factors: names and numbers whose product the size is, outermost first; empty for one of any size.
        is_many: it is a group.
        is_broadcast: its size may also be 1.
        plus: what is added to the product.
    """

    factors: tuple[str | int, ...]
    is_many: bool = False
    is_broadcast: bool = False
    plus: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names among the factors."""
        return tuple(factor for factor in self.factors if isinstance(factor, str))

    @property
    def name(self) -> str | None:
        """Return the name, if it is all there is; None for a product, a sum, a literal or any size."""
        only = self.factors[0] if len(self.factors) == 1 and not self.plus else None
        return only if isinstance(only, str) else None

    def __str__(self) -> str:
        if not self.factors:
            return "..." if self.is_many else "_"
        text = str(self.factors[0]) if len(self.factors) == 1 else f"({' '.join(map(str, self.factors))})"
        return "#" * self.is_broadcast + "*" * self.is_many + text + (f"+{self.plus}" if self.plus else "")


@dataclass(frozen=True, slots=True)
class Item:
    """One tensor of a line: an input or an output.

    Attributes:
        name: of the argument or the output.
        dims: its dimensions, or those of each tensor of a list.
        is_optional: None may stand for it.
    """

    name: str
    dims: tuple[Dim, ...]
    is_optional: bool = False

    @property
    def group(self) -> int | None:
        """Return the position of the dimension that stands for any number, or None."""
        return next((position for position, dim in enumerate(self.dims) if dim.is_many), None)

    @property
    def absent(self) -> int:
        """Return the number of leading dimensions that a tensor may lack."""
        count = next((n for n, dim in enumerate(self.dims) if not dim.is_broadcast), len(self.dims))
        return 0 if self.group is not None else count

    def __str__(self) -> str:
        return f"({' '.join(map(str, self.dims))})"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of shapes.

    Attributes:
        text: as it was written, in one line.
        inputs: the tensors that the op takes.
        outputs: the tensors that it returns, hidden ones included.
        along: the names in brackets.
    """

    text: str
    inputs: tuple[Item, ...]
    outputs: tuple[Item, ...]
    along: frozenset[str]

    def unknown_output(self) -> str | None:
        """Return the name of an output whose shape does not follow from the inputs, or None."""
        return next((item.name for item in self.outputs if any(not dim.factors for dim in item.dims)), None)

    def dims(self) -> Iterator[Dim]:
        """Yield the dimensions of all tensors, inputs first."""
        for item in (*self.inputs, *self.outputs):
            yield from item.dims

    def names(self) -> tuple[str, ...]:
        """Return all names of dimensions, each once, in the order of the line."""
        return tuple(dict.fromkeys(name for dim in self.dims() for name in dim.names))

    def groups(self) -> frozenset[str]:
        """Return the names that stand for any number of dimensions."""
        return frozenset(name for dim in self.dims() if dim.is_many for name in dim.names)

    def __str__(self) -> str:
        return self.text


OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {  # Any: ints, symbolic ones too
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}


class ExpressionError(ValueError):
    """An expression cannot be read."""


def names_in(text: str) -> tuple[str, ...]:
    """Return the names that an expression uses."""
    return tuple(dict.fromkeys(node.id for node in ast.walk(_parse(text)) if isinstance(node, ast.Name)))


def evaluate(text: str, sizes: Mapping[str, Any]) -> Any:  # Any: ints, symbolic ones too
    """Return the value of an expression."""
    return _value(_parse(text), sizes)


@functools.lru_cache(maxsize=256)
def _parse(text: str) -> ast.expr:
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, TypeError, AttributeError) as error:
        raise ExpressionError("it is not an expression") from error
    _check(body)
    return body


def _check(node: ast.expr) -> None:
    if isinstance(node, ast.BinOp):
        if type(node.op) not in OPERATORS:
            raise ExpressionError(f"'{ast.unparse(node)}' uses something other than + - * // **")
        _check(node.left)
        _check(node.right)
    elif not isinstance(node, ast.Name) and not (isinstance(node, ast.Constant) and type(node.value) is int):
        raise ExpressionError(f"'{ast.unparse(node)}' is neither a name nor an integer")


def _value(node: ast.expr, sizes: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    if isinstance(node, ast.Name):
        return sizes[node.id]
    assert isinstance(node, ast.Constant)  # nothing else is let through
    return node.value


Shape: TypeAlias = Sequence[int]
"""The sizes of a tensor; symbolic ones while a graph is traced."""

Size: TypeAlias = int | tuple[int, ...]
"""The size of a dimension, or those of a group."""


class SizeMismatch(Exception):  # noqa: N818 - it becomes a ShapeError of the op
    """A tensor does not have the dimensions of its line.

    Attributes:
        name: of the tensor.
        problem: what is wrong.
        expected: what would have been right.
        found: the shape.
    """

    def __init__(self, name: str, problem: str, expected: str, found: Shape) -> None:
        super().__init__(problem)
        self.name, self.problem, self.expected = name, problem, expected
        self.found = str(tuple(found))


def place(item: Item, shape: Shape) -> Iterator[tuple[Dim, Size | None]]:
    """Yield each dimension of an item with its size: a tuple for a group, None for one that is absent."""
    group, most = item.group, len(item.dims)
    least = most - 1 if group is not None else most - item.absent
    if len(shape) < least or (group is None and len(shape) > most):
        many = "at least " if group is not None else ""
        several = f"{least} to {most}" if group is None and least != most else str(least)
        expected = f"{many}{several} dimension{'' if several == '1' else 's'}"
        raise SizeMismatch(item.name, f"'{item.name}' must be {item}", expected, shape)
    if group is None:
        absent = most - len(shape)
        yield from zip(item.dims, (*[None] * absent, *shape), strict=True)
        return
    behind = len(shape) - (most - group - 1)
    yield from zip(item.dims[:group], shape[:group], strict=True)
    yield item.dims[group], tuple(shape[group:behind])
    yield from zip(item.dims[group + 1 :], shape[behind:], strict=True)
