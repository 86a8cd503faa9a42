"""The ops of the differential grid: one per shape of schema, each called with the two tensors of a cell."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from custom_autograd import CustomOp, custom_op


class Side(enum.Enum):
    LEFT = 1
    RIGHT = 2


@dataclass(frozen=True)
class GridOp:
    """One op, and how a cell calls it.

    Attributes:
        op: the op.
        call: the op, with two tensors for whatever it takes.
        is_differentiable: whether a gradient may be asked for.
    """

    op: CustomOp[..., Any]
    call: Callable[[Tensor, Tensor], Any]
    is_differentiable: bool = True


@custom_op("grid::one")
def one(x: Tensor, y: Tensor) -> Tensor:
    return x * y


one.register_fake(lambda x, y: torch.empty_like(x))
one.register_backward(lambda grad, x, y: {"x": grad * y, "y": grad * x})


@custom_op("grid::two")
def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * y, x + y


two.register_fake(lambda x, y: (torch.empty_like(x), torch.empty_like(x)))
two.register_backward(lambda grad_output_0, grad_output_1, x, y: (grad_output_0 * y + grad_output_1, None))


@custom_op("grid::hidden", outputs=("out", "square"), hidden=("square",))
def hidden(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * x * y, x * x


hidden.register_fake(lambda x, y: (torch.empty_like(x), torch.empty_like(x)))
hidden.register_grad("x")(lambda grad_out, x, y: 2 * grad_out * x * y)
hidden.register_grad("y")(lambda grad_out, square: grad_out * square)


@custom_op("grid::lists")
def lists(values: list[Tensor], scale: float = 2.0) -> list[Tensor]:
    return [value * scale for value in values]


lists.register_fake(lambda values, scale=2.0: [torch.empty_like(value) for value in values])
lists.register_backward(lambda grad, scale: [None if one is None else one * scale for one in grad])


@custom_op("grid::in_place", mutates_args=("x",))
def in_place(x: Tensor, y: Tensor) -> None:
    x.mul_(y)


in_place.register_backward(lambda grad_x, y: {"x": grad_x * y, "y": None})


@custom_op("grid::optional")
def optional(x: Tensor, y: Tensor | None = None, n: int = 2) -> Tensor:
    return x * n if y is None else x * y * n


optional.register_fake(lambda x, y=None, n=2: torch.empty_like(x))
optional.register_backward(
    lambda grad, x, y, n, needs: {
        "x": grad * n if y is None else grad * y * n,
        "y": grad * x * n if needs.y else None,
    }
)


@custom_op("grid::integer")
def integer(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * y, torch.ones_like(x, dtype=torch.int64)


integer.register_fake(lambda x, y: (torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)))
integer.register_backward(lambda grad_output_0, x, y: (grad_output_0 * y, grad_output_0 * x))


@custom_op("grid::scalars")
def scalars(
    x: Tensor,
    n: int,
    scale: float = 1.0,
    *,
    y: Tensor,
    flag: bool = True,
    mode: Literal["add", "sub"] = "add",
    side: Side = Side.LEFT,
    dtype: torch.dtype | None = None,
    dims: list[int] = (0, 1),
) -> Tensor:
    assert isinstance(side, Side)
    factor = n * scale * (1 if flag else 2) * (len(dims) if mode == "add" else -1)
    return x * y * factor if dtype is None else (x * y * factor).to(dtype)


scalars.register_fake(lambda x, n, scale=1.0, *, y, **_: torch.empty_like(x))
scalars.register_backward(lambda grad, x, y, n: (grad * y * n * 2, grad * x * n * 2))


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)
    ctx.factor = 1.0


def _drop_in_backward(ctx: Any, grad: Tensor) -> Any:
    x, y = ctx.saved_tensors
    return grad * y * ctx.factor, grad * x


@custom_op("grid::drop_in")
def drop_in(x: Tensor, y: Tensor) -> Tensor:
    return x * y


drop_in.register_fake(lambda x, y: torch.empty_like(x))
drop_in.register_autograd(_drop_in_backward, setup_context=_save)


@custom_op("grid::cast")
def cast(x: Tensor, y: Tensor) -> Tensor:
    return x * y


cast.register_fake(lambda x, y: torch.empty_like(x))
cast.register_backward(lambda grad, x, y: (grad * y, grad * x))
cast.register_autocast("cpu", torch.bfloat16)


@custom_op("grid::undefined")
def undefined(x: Tensor, y: Tensor) -> Tensor:
    return x + y


undefined.register_fake(lambda x, y: torch.empty_like(x))
undefined.register_backward(lambda grad: {"x": grad, "y": lambda: None}, once_differentiable=True)


OPS = {
    "one": GridOp(one, one),
    "two": GridOp(two, two),
    "hidden": GridOp(hidden, hidden),
    "lists": GridOp(lists, lambda x, y: lists([x, y])),
    "in_place": GridOp(in_place, in_place),
    "optional absent": GridOp(optional, lambda x, y: optional(x)),
    "optional present": GridOp(optional, lambda x, y: optional(x, y, n=3)),
    "integer": GridOp(integer, integer),
    "scalars": GridOp(scalars, lambda x, y: scalars(x, 2, y=y)),
    "drop_in": GridOp(drop_in, drop_in),
    "autocast rule": GridOp(cast, cast),
    "undefined": GridOp(undefined, undefined),
}
