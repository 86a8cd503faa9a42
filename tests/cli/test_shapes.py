"""custom-autograd shapes: a line is proposed from samples, and never applied."""

import pytest
from expecttest import assert_expected_inline

from custom_autograd.cli import main

LONGEST = 100  # of the reasons, which tests/checks pins in full

OPS = """
import torch
from torch import Tensor
from typing import Literal
from custom_autograd import Sample, custom_op

@custom_op("proposed::norm", reference=True)
def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / x.square().sum(-1, keepdim=True).sqrt() * weight

@norm.register_samples
def _(make):
    yield Sample(make(3, 8), make(8))
    yield Sample(make(2, 4, 5), make(5))

@custom_op("proposed::heads", reference=True)
def heads(q: Tensor, k: Tensor) -> Tensor:
    return q * k.repeat_interleave(q.shape[0] // k.shape[0], 0)

@heads.register_samples
def _(make):
    yield Sample(make(6, 5), make(2, 5))

@custom_op("proposed::pairs", reference=True)
def pairs(x: Tensor, weight: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * weight, second * weight), -1)

@pairs.register_samples
def _(make):
    yield Sample(make(3, 10), make(5))

@custom_op("proposed::total", reference=True)
def total(x: Tensor, reduction: Literal["sum", "mean"] = "sum") -> Tensor:
    return x.sum() if reduction == "sum" else x.mean()

@total.register_samples
def _(make):
    yield Sample(make(4, 3))
    yield Sample(make(4, 3), reduction="mean")

@custom_op("proposed::largest", reference=True, shapes="x: *b [n] -> values: *b [k]", outputs=("values",))
def largest(x: Tensor, k: int) -> Tensor:
    return x.topk(k).values

@largest.register_samples
def _(make):
    yield Sample(make(4, 7), 3)

@custom_op("proposed::scaled", reference=True)
def scaled(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight

@scaled.register_samples
def _(make):
    yield Sample(make(4, 3), make(3))
    yield Sample(make(2, 5), make(5))
    yield Sample(make(2, 5), make(1))

@custom_op("proposed::running_sum", reference=True)
def running_sum(x: Tensor) -> Tensor:
    return x.cumsum(-2)

@running_sum.register_samples
def _(make):
    yield Sample(make(4, 3))
    yield Sample(make(2, 5, 3))

@custom_op("proposed::fails")
def fails(x: Tensor) -> Tensor:
    raise ValueError("it never works")

@fails.register_samples
def _(make):
    yield Sample(make(4))

@custom_op("proposed::without_samples")
def without_samples(x: Tensor) -> Tensor:
    return x.clone()
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("proposed") / "proposed_ops.py"
    found.write_text(OPS)
    return found


@pytest.fixture
def proposed(path, capsys):
    """Return a function that runs the command on one of the ops."""

    def run(name):
        assert main(["shapes", f"{path}:{name}"]) == 0
        lines = capsys.readouterr().out.splitlines()
        return "\n".join(line if len(line) < LONGEST else f"{line[:LONGEST]}..." for line in lines if line)

    return run


def test_the_line_of_a_norm(proposed):
    assert_expected_inline(
        proposed("norm"),
        """\
proposed::norm
  proposed   shapes="x: *a [c], weight: [c] -> output: *a [c]"
  [c]        along 'c' the slices of 'output', side by side, are not the whole: element [1, 0, 3] = ...""",
    )


def test_a_product_of_two_names(proposed):
    assert_expected_inline(
        proposed("heads"),
        """\
proposed::heads
  proposed   shapes="q: (a b) c, k: a c -> output: (a b) c\"""",
    )


def test_a_product_with_a_number(proposed):
    assert_expected_inline(
        proposed("pairs"),
        """\
proposed::pairs
  proposed   shapes="x: a (2 b), weight: b -> output: a (2 b)\"""",
    )


def test_a_sample_that_shows_why_a_name_is_in_brackets(proposed):
    assert_expected_inline(
        proposed("total"),
        """\
proposed::total
  proposed   shapes="x: [a] [b] -> output:"
  [a]        along 'a' the slices of 'output' do not add up: the whole is their mean. Write [a], or ...
  [b]        along 'b' the slices of 'output' do not add up: -0.547774, expected -0.172318 (ratio 3....""",
    )


def test_the_line_that_is_there_is_shown_too(proposed):
    assert_expected_inline(
        proposed("largest"),
        """\
proposed::largest
  declared   x: *b [n] -> values: *b [k]
  proposed   shapes="x: a [b] -> values: a [k]"
  [k]        it is an argument of the op
  [b]        along 'b' the slices of 'values' do not add up: element [1, 2] = -1.88837, expected -0....""",
    )


def test_samples_that_do_not_have_the_dimensions_are_counted(proposed):
    assert_expected_inline(
        proposed("scaled"),
        """\
proposed::scaled
  proposed   shapes="x: a b, weight: b -> output: a b"
  1 of 3 samples do not have these dimensions, such as
    Sample(float32[2, 5], float32[1])""",
    )


def test_every_dimension_of_a_group_is_cut(proposed):
    assert_expected_inline(
        proposed("running_sum"),
        """\
proposed::running_sum
  proposed   shapes="x: *a [b] c -> output: *a [b] c"
  [b]        along 'b' the slices of 'output', side by side, are not the whole: element [0, 4, 2] = ...""",
    )


def test_an_op_that_raises_on_its_samples(proposed):
    assert_expected_inline(
        proposed("fails"),
        """\
proposed::fails
  no line is proposed: ValueError: it never works""",
    )


def test_an_op_without_samples(proposed):
    assert_expected_inline(
        proposed("without_samples"),
        """\
proposed::without_samples
  no samples are registered (register_samples), and a proposal comes from them""",
    )


def test_show_and_reports_print_the_line(path, capsys, tmp_path):
    page = tmp_path / "report.html"

    assert main(["show", "--source", f"{path}:largest"]) == 0
    shown = capsys.readouterr().out
    main(["check", f"{path}:largest", "--checks", "shapes", "-j", "0", "-q", "--html", str(page)])

    assert "x: *b [n] -&gt; values: *b [k]" in page.read_text()
    assert ": x: *b [n] -> values: *b [k]" in shown
    assert "# shapes: x: *b [n] -> values: *b [k]" in shown
