"""Ops whose arguments or results are containers, each with how it is called from tensors: what tests draw from."""

import dataclasses
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor
from torch.utils import _pytree

from custom_autograd import Sample, custom_op


class Affine(NamedTuple):
    weight: Tensor
    bias: Tensor | None
    times: int = 1


class Shape(enum.Enum):
    LINE = "line"
    CURVE = "curve"


@dataclass
class Options:
    shape: Shape
    scale: float
    kind: Literal["plus", "minus"] = "plus"


@dataclass(frozen=True)
class Block:
    affine: Affine
    options: Options
    gains: list[Tensor]


@dataclass
class State:
    hidden: Tensor
    cell: Tensor


@dataclass
class Found:
    values: Tensor
    count: int
    parts: list[Tensor]
    extra: Tensor | None


class Pair(TypedDict):
    left: Tensor
    right: Tensor


@dataclass
class Tree:
    value: Tensor
    children: list["Tree"]


class Polynomial:
    """Known to torch as a pytree node, with the degrees as its context."""

    def __init__(self, coefficients: Sequence[Any], degrees: tuple[int, ...]) -> None:
        self.coefficients, self.degrees = list(coefficients), degrees


_pytree.register_pytree_node(
    Polynomial,
    lambda value: (value.coefficients, value.degrees),
    lambda found, context: Polynomial(found, context),
    serialized_type_name="containers.Polynomial",
)


@custom_op("containers::affine", reference=True)
def affine(x: Tensor, p: Affine) -> Tensor:
    y = x * p.weight * p.times
    return y.clone() if p.bias is None else y + p.bias


@custom_op("containers::block", reference=True)
def block(x: Tensor, b: Block, *, power: int = 2) -> State:
    y = x * b.affine.weight * b.options.scale
    y = y.sin() if b.options.shape is Shape.CURVE else y
    y = y + sum(b.gains) if b.options.kind == "plus" else y - sum(b.gains)
    return State(y**power, x + y)


@custom_op("containers::weighted", reference=True)
def weighted(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
    y = x.clone()
    for name in sorted(weights):
        y = y * weights[name].exp()
    return y


@custom_op("containers::swapped", reference=True)
def swapped(p: Pair) -> Pair:
    return {"left": p["right"] * 2, "right": p["left"].sin()}


@custom_op("containers::stages", reference=True)
def stages(x: Tensor, steps: list[tuple[Tensor, float]]) -> Tensor:
    y = x.clone()
    for tensor, factor in steps:
        y = y * tensor + factor
    return y


@custom_op("containers::perhaps", reference=True)
def perhaps(x: Tensor, p: Affine | None = None) -> Tensor:
    return x * 3 if p is None else x * p.weight * p.times


@custom_op("containers::nested", reference=True)
def nested(pair: tuple[Tensor, tuple[Tensor, int]]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    first, (second, times) = pair
    return first * second, (first * times, second.cos())


@custom_op("containers::poly", reference=True)
def poly(x: Tensor, p: Polynomial) -> Tensor:
    return sum((c * x**d for c, d in zip(p.coefficients, p.degrees, strict=True)), torch.zeros_like(x))


@custom_op("containers::anything", reference=True)
def anything(x: Tensor, table: dict[str, Any]) -> Tensor:
    y = x * table["gain"] if table["on"] else x.clone()
    for tensor, power in table["more"]:
        y = y + tensor**power
    return y.to(table.get("dtype", y.dtype))


@custom_op("containers::window", reference=True)
def window(x: Tensor, where: slice = slice(None), *, rows: slice = slice(0, 2)) -> Tensor:
    return x[rows, where] * 2


@custom_op("containers::all_of", reference=True)
def all_of(x: Tensor, *layers: Affine) -> Tensor:
    y = x.clone()
    for layer in layers:
        y = y * layer.weight * layer.times
    return y


@custom_op("containers::named", outputs=("sum", "product"), reference=True)
def named(xs: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    return {"product": xs["a"][0] * xs["b"][-1], "sum": sum(xs["a"]) + sum(xs["b"])}


@custom_op("containers::found", reference=True, non_differentiable=("extra",))
def found(x: Tensor) -> Found:
    return Found(x.sin(), x.shape[0], [x * 2, x * 3], None)


@custom_op("containers::tree", reference=True)
def tree(t: Tree) -> Tensor:
    return t.value * 2 + sum((tree_sum(child) for child in t.children), torch.zeros_like(t.value))


def tree_sum(t: Tree) -> Tensor:
    return t.value.sin() + sum((tree_sum(child) for child in t.children), torch.zeros_like(t.value))


@custom_op("containers::hides", outputs=("state", "norm"), hidden=("norm",), reference=True)
def hides(x: Tensor) -> tuple[State, Tensor]:
    norm = x.square().sum(-1, keepdim=True)
    return State(x * norm, x + norm), norm


@dataclass(frozen=True)
class Row:
    """One op with a call of it.

    Attributes:
        op: the op.
        shapes: of the tensors it is called from.
        arguments: those tensors -> positional and keyword arguments.
    """

    op: Any
    shapes: tuple[tuple[int, ...], ...]
    arguments: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]

    def tensors(self, dtype: torch.dtype = torch.float64, *, batch: tuple[int, ...] = ()) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        return tuple(
            torch.rand(*batch, *shape, generator=generator, dtype=torch.float64).to(dtype).add_(0.5).requires_grad_()
            for shape in self.shapes
        )

    def call(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors that the op returns."""
        positional, keywords = self.arguments(*tensors)
        return flattened(self.op(*positional, **keywords))

    def plain(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors that the function it was declared with returns, visible ones only."""
        positional, keywords = self.arguments(*tensors)
        result = self.op.__wrapped__(*positional, **keywords)
        return flattened(result[0] if self.op is hides else result)

    def sample(self, make: Any) -> Sample:
        """The call as a sample."""
        positional, keywords = self.arguments(*(make(*shape, low=0.5, high=1.5) for shape in self.shapes))
        return Sample(*positional, **keywords)


def flattened(value: Any) -> tuple[Tensor, ...]:
    """The tensors in a value."""
    if value is None or isinstance(value, (int, Tensor)):
        return (value,) if isinstance(value, Tensor) else ()
    if dataclasses.is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    return tuple(one for item in value for one in flattened(item)) if isinstance(value, (list, tuple)) else ()


CURVE = Options(Shape.CURVE, 0.5, "minus")
S = (2, 3)
ROWS: dict[str, Row] = {
    "named tuple": Row(affine, (S, S, S), lambda x, w, b: ((x, Affine(w, b, 2)), {})),
    "named tuple without bias": Row(affine, (S, S), lambda x, w: ((x,), {"p": Affine(w, None)})),
    "dataclass": Row(block, (S, S, S), lambda x, w, g: ((x, Block(Affine(w, None), CURVE, [g, g * 2])), {"power": 3})),
    "dict": Row(weighted, (S, S, (3,)), lambda x, a, b: ((x, {"b": b, "a": a}), {})),
    "empty dict": Row(weighted, (S,), lambda x: ((x, {}), {})),
    "typed dict": Row(swapped, (S, S), lambda a, b: (({"left": a, "right": b},), {})),
    "list of tuples": Row(stages, (S, S, (3,)), lambda x, a, b: ((x, [(a, 2.0), (b, -1.0)]), {})),
    "optional given": Row(perhaps, (S, S), lambda x, w: ((x, Affine(w, None, 3)), {})),
    "optional left out": Row(perhaps, (S,), lambda x: ((x,), {})),
    "nested tuples": Row(nested, (S, S), lambda a, b: (((a, (b, 3)),), {})),
    "pytree node": Row(poly, (S, S, (3,)), lambda x, a, b: ((x, Polynomial([a, b], (1, 3))), {})),
    "anything": Row(anything, (S, (3,), S), lambda x, g, m: ((x, {"on": True, "gain": g, "more": [(m, 2)]}), {})),
    "slices": Row(window, ((3, 4),), lambda x: ((x, slice(1, None, 2)), {})),
    "slices by default": Row(window, ((3, 4),), lambda x: ((x,), {})),
    "many records": Row(all_of, (S, S, S), lambda x, a, b: ((x, Affine(a, None), Affine(b, None, 2)), {})),
    "dict of lists": Row(named, (S, S, S), lambda a, b, c: (({"a": [a, b], "b": [c]},), {})),
    "several kinds of output": Row(found, (S,), lambda x: ((x,), {})),
    "tree": Row(tree, (S, S, S), lambda a, b, c: ((Tree(a, [Tree(b, []), Tree(c, [Tree(a, [])])]),), {})),
    "hidden output": Row(hides, (S,), lambda x: ((x,), {})),
}
