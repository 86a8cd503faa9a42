"""Samples that follow from a line: every row of sizes, other values of arguments, and calls with one size off."""

from typing import Literal

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from torch import Tensor

from custom_autograd import check, custom_op
from custom_autograd.core.errors import CheckError, ShapeError
from custom_autograd.schema.samples import Sample, TensorFactory
from custom_autograd.shapes.sampling import ROWS, find_samples


@custom_op(
    "shapes_sampling::linear",
    shapes="x: *b i, weight: o i, bias?: [o] -> output: *b [o]",
    reference=True,
)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, mode: Literal["a", "b"] = "a") -> Tensor:
    return torch.nn.functional.linear(x, weight, bias)


def samples_of(op):
    return list(find_samples(op._record)(TensorFactory(dtype=torch.float64)))


def test_each_row_is_a_sample():
    shapes = [tuple(tensor.shape for tensor in sample.tensors()) for sample in samples_of(linear) if not sample.error]

    assert [row.group for row in ROWS] == [shape[0][:-1] for shape in shapes[: len(ROWS)]]
    assert [row.sizes[0] for row in ROWS] == [shape[0][-1] for shape in shapes[: len(ROWS)]]


def test_optional_tensors_and_literals_vary():
    samples = [sample for sample in samples_of(linear) if not sample.error]

    assert any(sample.args[2] is None for sample in samples)
    assert {"a", "b"} == {sample.kwargs["mode"] for sample in samples}


def test_wrong_samples_are_refused_by_name():
    wrong = [sample for sample in samples_of(linear) if sample.error]

    assert wrong
    for sample in wrong:
        with pytest.raises(ShapeError, match=sample.error.match):
            linear(*sample.args, **sample.kwargs)


def test_derived_samples_pass_the_check_of_errors():
    (*_, result) = check(linear, checks=["errors"]).results

    assert "passed" == result.status


@custom_op(
    "shapes_sampling::pick",
    shapes="x: [n] d, index: m -> output: m d",
    numbers={"index": lambda make, shape, sizes: make(*shape, dtype=torch.int64, high=max(1, sizes["n"]))},
)
def pick(x: Tensor, index: Tensor, scale: float = 1.0) -> Tensor:
    return scale * x[index]


def test_numbers_make_what_values_matter_of():
    for sample in samples_of(pick):
        x, index = sample.args[:2]
        if sample.error is None:
            assert torch.int64 == index.dtype
            assert index.numel() == 0 or int(index.max()) < len(x)


@custom_op("shapes_sampling::powered", shapes="x: n -> output: n")
def powered(x: Tensor, exponent: float) -> Tensor:
    return x**exponent


def test_argument_without_a_default_needs_a_number():
    with pytest.raises(CheckError, match="'exponent' has no default"):
        samples_of(powered)


def test_registered_samples_come_first():
    @custom_op("shapes_sampling::registered", shapes="x: n -> output: n")
    def registered(x: Tensor) -> Tensor:
        return x.clone()

    @registered.register_samples
    def _(make):
        yield Sample(make(7))

    assert [(7,)] == [sample.tensors()[0].shape for sample in samples_of(registered)]


@custom_op("shapes_sampling::add_", shapes="x: n, y: n ->", mutates_args="x")
def add_(x: Tensor, y: Tensor) -> None:
    x += y


def test_a_writing_op_without_a_backward_passes_on_its_derived_samples():
    report = add_.check(checks=["errors", "shapes", "schema"], raise_on_failure=False)

    assert [] == [result.message for result in report.results if result.is_finding]
    assert {"errors", "shapes"} <= {result.check for result in report.results if result.status == "passed"}


@custom_op(
    "shapes_sampling::first",
    shapes="x: [n] -> output: [k]",
    numbers={"k": lambda make, shape, sizes: min(2, sizes["n"])},
)
def first(x: Tensor, k: int) -> Tensor:
    return x[:k].clone()


def test_a_number_may_depend_on_other_sizes():
    samples = [sample for sample in samples_of(first) if sample.error is None]

    assert all(sample.args[1] == min(2, sample.args[0].shape[0]) for sample in samples)


@custom_op("shape_samples::take", shapes="index: n, table: [m] -> out: n", dtypes={"out": "table"}, reference=True)
def take(index: Tensor, table: Tensor) -> Tensor:
    return table[index]


@custom_op("shape_samples::masked", shapes="mask: n, x: n -> out: n", dtypes={"out": "x"}, reference=True)
def masked(mask: Tensor, x: Tensor) -> Tensor:
    return torch.where(mask, x, 0)


@custom_op("shape_samples::refused", shapes="a: n, b: n -> out: n", reference=True)
def refused(a: Tensor, b: Tensor) -> Tensor:
    raise ValueError("not these")


@pytest.mark.parametrize(("op", "dtype"), [(take, torch.int64), (masked, torch.bool)], ids=["index", "mask"])
def test_an_argument_that_takes_no_floats_has_the_dtype_that_the_reference_takes(op, dtype):
    samples = list(find_samples(op._record)(TensorFactory(dtype=torch.float64)))

    assert {(dtype, torch.float64)} == {tuple(value.dtype for value in sample.args) for sample in samples}
    assert op.check(checks=["reference_gradients", "gradcheck"]).ok


def test_a_reference_that_takes_no_sample_wants_samples_to_be_registered():
    assert_expected_inline(
        message(lambda: refused.check()),
        """\
CheckError: shape_samples::refused: samples do not follow from the line of shapes: the reference raises not these
  declared   FILE.py:LINE
  do         register_samples, or give numbers={'a': lambda make, shape, sizes: make(*shape, dtype=torch.int64)}""",
    )
