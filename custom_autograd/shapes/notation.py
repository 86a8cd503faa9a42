"""The parts of a line of shapes, as data.

    x: *b [d], weight: [d] -> out: *b [d], rstd: *b 1

name     one dimension                               _    one dimension of any size, which is not compared
*name    any number of dimensions                    ...  any number of those
#name    the size may also be 1, and leading such dimensions may be absent (also #*name)
(k g)    a product, the outermost factor first       1    a literal size
[n+1]    a size that differs by a constant, in brackets only
[d]      the op computes along d: slices of its inputs do not give slices of its outputs
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


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

    def find_input(self, name: str) -> Item | None:
        """Return the item of an argument, or None."""
        return next((item for item in self.inputs if item.name == name), None)

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
