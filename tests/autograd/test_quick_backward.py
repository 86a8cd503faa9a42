"""The quick backward returns what the general one returns, for every kind of op, and raises the same errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import GradientError, custom_op
from custom_autograd.execution.quick_backward import QuickWriter

NUMBERS = itertools.count()


def rand(*shape):
    return torch.rand(*shape, dtype=torch.float64) + 0.5


# --------------------------------------------------------------------------------------------------- ops of every kind


@custom_op("quick::norm", outputs=("out", "rstd"), hidden=("rstd",))
def norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x * rstd * weight, rstd


@norm.register_backward
def _(grad_out, x, weight, rstd, grad_rstd=None):
    scaled = grad_out * weight
    grad_x = rstd * scaled - x * rstd**3 * (scaled * x).mean(-1, keepdim=True)
    if grad_rstd is not None:
        grad_x = grad_x - grad_rstd * rstd**3 * x / x.shape[-1]
    return {"x": grad_x, "weight": lambda: (grad_out * x * rstd).sum(0)}


@custom_op("quick::filled", outputs=("out", "square"), hidden=("square",))
def filled(x: Tensor) -> tuple[Tensor, Tensor]:
    return x**3, x * x


@filled.register_backward
def _(grad_out, grad_square, x):
    return 3 * grad_out * x * x + 2 * grad_square * x


@custom_op("quick::silent", outputs=("out", "square"), hidden=("square",), reference=True)
def silent(x: Tensor) -> tuple[Tensor, Tensor]:
    return x**3, x * x


@silent.register_backward
def _(grad_out, square):
    return 3 * grad_out * square


@custom_op("quick::gather")
def gather(table: Tensor, index: Tensor) -> Tensor:
    return table[index]


@gather.register_backward
def _(grad, table, index):
    return {"table": torch.zeros_like(table).index_add(0, index, grad)}


@custom_op("quick::unsaved")
def unsaved(x: Tensor, bias: Tensor) -> Tensor:
    return x + bias


@unsaved.register_backward
def _(grad):
    return grad * 1, grad.sum(0)


@custom_op("quick::uncovered", reference=True)
def uncovered(x: Tensor, scale: Tensor) -> Tensor:
    return x * scale


@uncovered.register_grad("x")
def _(grad, scale):
    return grad * scale


@custom_op("quick::weighted")
def weighted(xs: list[Tensor], bias: Tensor | None = None, *, power: int = 2) -> Tensor:
    total = sum(x**power for x in xs)
    return total * 1 if bias is None else total + bias


@weighted.register_backward
def _(grad, xs, bias, power):
    return {"xs": [grad * power * x ** (power - 1) for x in xs], "bias": None if bias is None else grad * 1}


@custom_op("quick::parts")
def parts(x: Tensor) -> tuple[list[Tensor], Tensor]:
    return [x[0] * 2, x[1] * 3], x.sum(0)


@parts.register_backward
def _(grad_output_0, grad_output_1, meta):
    first, second = grad_output_0
    return torch.stack([first * 2, second * 3]) + grad_output_1.expand(meta.x.shape)


@custom_op("quick::two", outputs=("left", "right"))
def two(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin(), x.cos()


@two.register_backward
def _(grad_left, grad_right, x):
    return grad_left * x.cos() - grad_right * x.sin()


@custom_op("quick::optional_lists", outputs=("out", "spare"))
def optional_lists(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    return x * 2, [x * 3, x * 5]


@optional_lists.register_backward
def _(grad_out, grad_spare=None):
    return grad_out * 2 if grad_spare is None else grad_out * 2 + 3 * grad_spare[0] + 5 * grad_spare[1]


@custom_op("quick::scale_", mutates_args=("x",))
def scale_(x: Tensor, factor: Tensor) -> None:
    x.mul_(factor)


@scale_.register_backward
def _(grad, x, factor):
    return {"x": grad * factor, "factor": grad * x / factor}


@custom_op("quick::scale_all_", mutates_args=("xs",), outputs=("total",))
def scale_all_(xs: list[Tensor], factor: float) -> Tensor:
    for x in xs:
        x.mul_(factor)
    return sum(x * 1 for x in xs)


@scale_all_.register_backward
def _(grad_xs, grad_total, factor):
    return [(one + grad_total) * factor for one in grad_xs]


def scaled(x, factor):
    copy = x * 1
    scale_(copy, factor)
    return copy


def scaled_all(x, y):
    copies = [x * 1, y * 1]
    total = scale_all_(copies, 2.0)
    return copies[0] * copies[1] + total


def all_parts(x):
    (first, second), total = parts(x)
    return first * second + total


def all_of_a_list(x):
    out, (first, second) = optional_lists(x)
    return out + first * second


class Row(NamedTuple):
    op: object
    ours: Callable
    theirs: Callable
    shapes: tuple


INDEX = torch.tensor([2, 0, 2])
ROWS = {
    "hidden, taken as None": Row(
        norm, norm, lambda x, w: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w, ((2, 3), (3,))
    ),
    "hidden, filled": Row(filled, filled, lambda x: x**3, ((3,),)),
    "hidden, silent": Row(silent, silent, lambda x: x**3, ((3,),)),
    "integer input": Row(gather, lambda t: gather(t, INDEX), lambda t: t[INDEX], ((3, 2),)),
    "nothing saved": Row(unsaved, unsaved, lambda x, b: x + b, ((2, 3), (3,))),
    "uncovered, unneeded": Row(uncovered, lambda x: uncovered(x, INDEX * 1.0), lambda x: x * INDEX, ((3,),)),
    "list": Row(weighted, lambda x, y: weighted([x, y], power=3), lambda x, y: x**3 + y**3, ((3,), (3,))),
    "list and optional": Row(
        weighted, lambda x, y, b: weighted([x, y], b), lambda x, y, b: x**2 + y**2 + b, ((3,), (3,), (3,))
    ),
    "list out, and metadata": Row(
        parts,
        all_parts,
        lambda x: x[0] * 2 * x[1] * 3 + x.sum(0),
        ((2, 3),),
    ),
    "two outputs": Row(two, lambda x: two(x)[0] * two(x)[1], lambda x: x.sin() * x.cos(), ((3,),)),
    "the first of two outputs": Row(two, lambda x: two(x)[0], torch.sin, ((3,),)),
    "the second of two outputs": Row(two, lambda x: two(x)[1], torch.cos, ((3,),)),
    "list that is not used": Row(optional_lists, lambda x: optional_lists(x)[0], lambda x: x * 2, ((3,),)),
    "list that is used": Row(
        optional_lists,
        all_of_a_list,
        lambda x: x * 2 + 15 * x * x,
        ((3,),),
    ),
    "a part of a list": Row(parts, lambda x: parts(x)[0][1] + 0 * parts(x)[1], lambda x: x[1] * 3, ((2, 3),)),
    "a part of an optional list": Row(optional_lists, lambda x: optional_lists(x)[1][1], lambda x: x * 5, ((3,),)),
    "writing": Row(scale_, scaled, lambda x, f: x * f, ((3,), (3,))),
    "writing to a list": Row(scale_all_, scaled_all, lambda x, y: 4 * x * y + 2 * x + 2 * y, ((3,), (3,))),
}


@contextmanager
def only_quick(op):
    """Fails where the general backward of an op is asked."""
    scope = op._record.road.generated["cheap"].recording.quick.__globals__
    general = scope["backward"]

    def refuse(*args):
        raise AssertionError("the general backward was asked")

    scope["backward"] = refuse
    try:
        yield
    finally:
        scope["backward"] = general


def gradients(f, tensors, needed, cotangent):
    leaves = [tensor.clone().requires_grad_(index in needed) for index, tensor in enumerate(tensors)]
    return torch.autograd.grad(f(*leaves), [leaves[index] for index in needed], cotangent)


@each("row", [row for name, row in ROWS.items() if "part of" not in name])
def test_the_quick_backward_serves_every_kind_of_op(row):
    tensors = [rand(*shape) for shape in row.shapes]
    everything = range(len(tensors))
    cotangent = rand(*row.theirs(*tensors).shape)
    for _ in range(3):
        row.ours(*tensors)
        gradients(row.ours, tensors, everything, cotangent)
    with only_quick(row.op):
        found = gradients(row.ours, tensors, everything, cotangent)

    torch.testing.assert_close(found, gradients(row.theirs, tensors, everything, cotangent))


@each("row", ROWS.values(), ids=ROWS)
@each("lazy", [False, True], ids=["plain", "negated"])
def test_gradients_are_those_of_plain_pytorch(row, lazy):
    tensors = [rand(*shape) for shape in row.shapes]
    cotangent = rand(*row.theirs(*tensors).shape)
    if lazy:
        cotangent = torch._neg_view(cotangent)

    for count in range(1, len(tensors) + 1):
        for needed in itertools.combinations(range(len(tensors)), count):
            expected = gradients(row.theirs, tensors, needed, cotangent)
            for _ in range(2):
                torch.testing.assert_close(gradients(row.ours, tensors, needed, cotangent), expected)


@each("row", ROWS.values(), ids=ROWS)
def test_second_gradients_are_those_of_plain_pytorch(row):
    tensors = [rand(*shape) for shape in row.shapes]

    def second(f):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        first = torch.autograd.grad((f(*leaves) ** 3).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum((one**2).sum() for one in first), leaves)

    for _ in range(2):
        torch.testing.assert_close(second(row.ours), second(row.theirs))


@each("row", ROWS.values(), ids=ROWS)
def test_batched_gradients_are_those_of_plain_pytorch(row):
    tensors = [rand(*shape) for shape in row.shapes]
    cotangents = rand(4, *row.theirs(*tensors).shape)

    def batched(f):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        return torch.autograd.grad(f(*leaves), leaves, cotangents, is_grads_batched=True)

    for _ in range(2):
        torch.testing.assert_close(batched(row.ours), batched(row.theirs))


# ------------------------------------------------------------------------------------------------------------- errors


RETURNED = {}
DECLARED = {
    "hidden": ("(Tensor x, Tensor y) -> (Tensor out, Tensor h)", lambda x, y: (x * y, x + 1), ("h",), ()),
    "list": ("(Tensor[] x, Tensor y) -> Tensor out", lambda x, y: x[0] * y, (), ()),
    "optional": ("(Tensor? x, Tensor y) -> Tensor out", lambda x, y: x * y, (), ()),
    "list out": ("(Tensor x, Tensor y) -> Tensor[] out", lambda x, y: [x * y], (), ()),
    "writing": ("(Tensor(a!) x, Tensor y) -> Tensor out", lambda x, y: (x.mul_(2), x * y)[1], (), ("x",)),
    "writing to a list": (
        "(Tensor(a!)[] x, Tensor y) -> Tensor out",
        lambda x, y: (x[0].mul_(2), x[0] * y)[1],
        (),
        ("x",),
    ),
}
WRONG = {
    "shape": lambda g: {"x": g[None], "y": g},
    "dtype": lambda g: {"x": g.float(), "y": g},
    "device": lambda g: {"x": g.to("meta"), "y": g},
    "second wrong": lambda g: {"x": g, "y": g[:1]},
    "missing": lambda g: {"x": g},
    "all missing": lambda g: {},
    "surplus": lambda g: {"x": g, "y": g, "z": g},
    "number": lambda g: {"x": 1.0, "y": g},
    "callable of a number": lambda g: {"x": lambda: 1.0, "y": g},
    "callable that raises": lambda g: {"x": lambda: {}["key"], "y": g},
    "too few": lambda g: (g,),
    "too many": lambda g: (g, g, g),
    "one for two": lambda g: g,
    "nothing": lambda g: None,
    "raising": lambda g: {}["key"],
}


def rule(grad_out, y):
    grad = grad_out[0] if isinstance(grad_out, list) else grad_out
    return RETURNED["what"](grad)


def backward_of(op, schema):
    """Runs a backward pass through an op of some kind."""
    x, y = (torch.full((3,), 2.0, dtype=torch.float64, requires_grad=True) for _ in range(2))
    given = x * 1 if "a!" in schema else x
    out = op([given] if "[] x" in schema else given, y)
    (out[0] if isinstance(out, list) else out).sum().backward()


def error_of(kind, what, *, is_quick, monkeypatch):
    """The error of a backward pass through an op of some kind, whose rule returns something wrong."""
    schema, kernel, hidden, written = DECLARED[kind]
    name = f"quick::wrong_{next(NUMBERS)}"
    with monkeypatch.context() as patch:
        if not is_quick:
            patch.setattr(QuickWriter, "is_possible", False)
        op = custom_op(name, kernel, schema=schema, hidden=hidden, mutates_args=written)
        op.register_backward(rule)
        RETURNED["what"] = lambda grad: _in_lists(kind, {"x": grad, "y": grad})
        backward_of(op, schema)
    assert is_quick == (op._record.road.generated["cheap"].recording.quick is not None)
    RETURNED["what"] = lambda grad: _in_lists(kind, WRONG[what](grad))
    with pytest.raises((GradientError, KeyError)) as caught:
        backward_of(op, schema)
    said = [str(caught.value), *getattr(caught.value, "__notes__", [])]
    return type(caught.value), [text.replace(name, "OP") for text in said]


def _in_lists(kind, result):
    """What a rule returned, with a list for an input that is one."""
    if "list" not in kind or kind == "list out" or not isinstance(result, dict) or "x" not in result:
        return result
    return {**result, "x": [result["x"]]}


@each("kind", DECLARED)
@each("what", WRONG)
def test_a_wrong_gradient_has_the_same_error_on_both_ways(kind, what, monkeypatch):
    quick = error_of(kind, what, is_quick=True, monkeypatch=monkeypatch)
    general = error_of(kind, what, is_quick=False, monkeypatch=monkeypatch)

    assert general == quick


def test_a_gradient_that_is_not_needed_is_not_computed():
    ran = []
    op = custom_op("quick::lazy", lambda x, y: x * y, schema="(Tensor x, Tensor y) -> Tensor")
    op.register_backward(lambda grad, x, y: {"x": lambda: ran.append("x") or grad * y, "y": lambda: ran.append("y")})
    x, y = rand(3).requires_grad_(), rand(3)
    for _ in range(3):
        op(x, y).sum().backward()

    assert ["x"] * 3 == ran
