"""The same wrong sizes are refused with ShapeError, whichever way a call takes."""

import os
import re
from pathlib import Path

import pytest
import torch
from expecttest import assert_expected_inline
from tables import each
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.core.errors import RegistrationError, ShapeError
from python_server import run_python


@custom_op("shapes_refusals::norm", shapes="x: *b [d], weight: [d] -> output: *b [d]", reference=True)
def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * x.square().mean(-1, keepdim=True).rsqrt() * weight


@custom_op("shapes_refusals::heads", shapes="q: (k g) f, k: k f, bias?: #(k g) -> output: (k g) f", reference=True)
def heads(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    found = q * k.repeat_interleave(q.shape[0] // max(1, k.shape[0]), 0)[: q.shape[0]].sum()
    return found if bias is None else found + bias.sum()


@custom_op("shapes_refusals::lists", shapes="xs: n d, scale: s -> output: n d", reference=True)
def lists(xs: list[Tensor], scale: Tensor) -> list[Tensor]:
    return [x * scale.sum() for x in xs]


@custom_op("shapes_refusals::top", shapes="x: n, first: [k] -> output: n", reference=True)
def top(x: Tensor, first: Tensor, k: int = 2) -> Tensor:
    return x + first.sum()


ONES = torch.ones
GOOD = {
    "norm": (norm, (ONES(2, 3), ONES(3))),
    "heads": (heads, (ONES(6, 4), ONES(2, 4), ONES(1))),
    "lists": (lists, ([ONES(2, 3), ONES(1, 3)], ONES(5))),
    "top": (top, (ONES(4), ONES(2))),
}
BAD = {
    "norm": [(ONES(2, 3), ONES(4)), (ONES(()), ONES(3)), (ONES(2, 3), ONES(1)), (ONES(2, 3), ONES(3, 1))],
    "heads": [(ONES(5, 4), ONES(2, 4), ONES(1)), (ONES(6, 4), ONES(2, 3), None), (ONES(6, 4), ONES(2, 4), ONES(2))],
    "lists": [([ONES(2), ONES(1, 3)], ONES(5)), ([ONES(2, 3)], ONES(5, 1))],
    "top": [(ONES(4), ONES(3)), (ONES(4, 1), ONES(2)), (ONES(4), ONES(3), 2)],
}
CASES = [
    pytest.param(GOOD[name][0], GOOD[name][1], bad, id=f"{name}-{i}") for name in BAD for i, bad in enumerate(BAD[name])
]


def requiring(arguments):
    one = [a.clone().requires_grad_() if isinstance(a, Tensor) else a for a in arguments]
    return [[x.clone().requires_grad_() for x in a] if isinstance(a, list) else a for a in one]


def dispatched(op):
    return getattr(torch.ops.shapes_refusals, op.name.partition("::")[2])


def batched(op, arguments):
    def more(value):
        return torch.stack([value, value]) if isinstance(value, Tensor) else value

    stacked = [[more(x) for x in a] if isinstance(a, list) else more(a) for a in arguments]
    dims = [0 if isinstance(a, (Tensor, list)) else None for a in arguments]
    return torch.vmap(op, in_dims=tuple(dims))(*stacked)


WAYS = {
    "direct": lambda op, arguments: op(*arguments),
    "dispatcher": lambda op, arguments: dispatched(op)(*arguments),
    "autograd": lambda op, arguments: op(*requiring(arguments)),
    "vmap": batched,
    "meta": lambda op, arguments: op(
        *[
            [x.to("meta") for x in a] if isinstance(a, list) else a.to("meta") if isinstance(a, Tensor) else a
            for a in arguments
        ]
    ),
}


@each("way", WAYS)
@each(("op", "good", "bad"), CASES)
def test_wrong_sizes_are_refused_after_right_ones(op, good, bad, way):
    """The first calls prove which shapes are right; a later call of the same kind must be looked at all the same."""
    for _ in range(3):
        WAYS[way](op, good)

    with pytest.raises(ShapeError, match="must be"):
        WAYS[way](op, bad)
    WAYS[way](op, good)


@each(("op", "good", "bad"), CASES)
def test_compiled_call_refuses(op, good, bad, fresh_compiler):
    compiled = torch.compile(op, backend="eager", fullgraph=True)

    with pytest.raises(Exception, match="must be") as caught:
        compiled(*bad)

    text = str(caught.value)
    assert isinstance(caught.value, ShapeError) or "ShapeError" in text


def test_python_calls_refuse_as_native_ones_do():
    """CUSTOM_AUTOGRAD_NATIVE=0 leaves generated Python calls."""
    tests = Path(__file__).parents[1]
    program = (
        "import test_refusals as t\n"
        "from custom_autograd.core.errors import RegistrationError, ShapeError\n"
        "for case in t.CASES:\n"
        "    op, good, bad = case.values\n"
        "    for _ in range(3): op(*good)\n"
        "    try: op(*bad)\n"
        "    except ShapeError as error: print('refused', str(error).partition(' must be')[0])\n"
    )
    path = os.pathsep.join([str(tests.parent), str(tests), str(tests / "shapes")])
    environment = {**os.environ, "PYTHONPATH": path, "CUSTOM_AUTOGRAD_NATIVE": "0"}
    finished = run_python("-c", program, env=environment)

    assert len(CASES) == finished.stdout.count("refused"), finished.stderr


@custom_op("shapes_refusals::paired", shapes="x: (2 n) -> output: n", reference=True)
def paired(x: Tensor) -> Tensor:
    half = x.shape[0] // 2
    return x[:half] + x[:half].flip(0)


@paired.register_kernel("cpu", name="same")
def _(x):
    return x[: x.shape[0] // 2] + x[: x.shape[0] // 2].flip(0)


def test_sizes_that_the_line_refuses_are_not_advice_to_a_kernel():
    """A reference may compute what the line refuses, such as a pair without its second element."""
    report = paired.check([Sample(torch.rand(4))], checks=["sizes"])

    assert [("passed", "")] == [(result.status, result.advice) for result in report.results]


@custom_op("shapes_refusals::by_size")
def by_size(x: Tensor, y: Tensor) -> Tensor:
    return x * 2


@by_size.register_shapes
def _(x):
    return "x: d, y: d -> output: d" if x[0] > 3 else "x: d, y: n -> output: d"


def test_a_line_that_depends_on_sizes_is_asked_for_in_each_call():
    for _ in range(50):
        by_size(torch.ones(3), torch.ones(3))

    by_size(torch.ones(3), torch.ones(5))
    with pytest.raises(ShapeError, match="'y' must be"):
        by_size(torch.ones(4), torch.ones(5))


@custom_op("shapes_refusals::by_axis")
def by_axis(x: Tensor, axis: int) -> Tensor:
    return x * 2


@by_axis.register_shapes
def _(axis):
    dims = " ".join([*(f"a{i}" for i in range(axis)), "c", "*b"])
    return f"x: {dims} -> output: {dims}"


def test_a_line_of_thousands_of_dimensions_is_refused_at_once():
    """Its names are counted in one pass: one pass for each name took half an hour for 130,000 of them."""
    assert torch.equal(2 * torch.ones(2, 3), by_axis(torch.ones(2, 3), 1))
    with pytest.raises(ShapeError, match="'x' must be"):
        by_axis(torch.ones(2, 3), 900)
    with pytest.raises(RegistrationError) as info:
        by_axis(torch.ones(2, 3), 131_071)
    assert_expected_inline(
        re.sub(r"\S+\.py:\d+", "HERE", str(info.value)),
        """\
shapes_refusals::by_axis: the line of shapes does not fit the op: 'x' has 131,073 dimensions in the line
  expected   at most 1,000
  found      x: a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11 a12 a13 a14 a15 a16 a17 a18 a19 a20 a21..., 1,874,939 characters
  rule       HERE, shapes
  declared   HERE
  do         look at the function that returns it, and at the arguments that it is called with""",
    )
