"""Checks on the device: right ops pass those that failed there, or raised, when the device was taken for the CPU."""

# ruff: noqa: E501 - a message is as long as it is

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from torch import Tensor

from custom_autograd import CheckError, Sample, check, custom_op
from custom_autograd.schema.samples import TensorFactory


@custom_op("second_device::smooth", outputs=("out", "scale"), reference=True)
def smooth(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return tanh(x * weight), and the largest |x|."""
    return torch.tanh(x * weight), x.abs().amax(-1, keepdim=True)


@smooth.register_backward
def _(grad_out, grad_scale, x, weight, out, scale):
    inner = grad_out * (1 - out * out)
    largest = torch.sign(x) * (x.abs() == scale)
    return inner * weight + grad_scale * largest, (inner * x).sum_to_size(weight.shape)


@smooth.register_samples
def _(make):
    yield Sample(make(3, 4), make(4))
    yield Sample(make(2, 5), make(5))


@custom_op("second_device::picked", reference=True)
def picked(x: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of x."""
    return x[rows]


@picked.register_samples
def _(make):
    yield Sample(make(4, 2), make.tensor([0, 3]))
    yield Sample(make(4, 2), make.tensor([4])).raises(IndexError, match="out of", on="cpu")


@pytest.mark.parametrize("name", ["low_precision", "gradcheck", "bounds", "uninitialised", "saved_hooks", "reuse"])
def test_no_tensor_is_made_on_the_cpu(name):
    report = check(smooth, checks=name, device="second")

    assert {"passed"} == {result.status for result in report.results}, report


def left_on_the_cpu(make):
    yield Sample(make(2), 3.0)
    yield Sample(torch.tensor(2.0), torch.tensor(3.0))
    yield Sample(torch.ones(2), make(2)).named("half of it")
    yield Sample(torch.ones(2, 3), 3.0)


def test_a_sample_without_a_tensor_on_the_device_raises():
    def product(x, factor):
        return x * factor

    assert_expected_inline(
        message(lambda: check(product, left_on_the_cpu, device="second"), CheckError),
        """\
CheckError: test_a_sample_without_a_tensor_on_the_device_raises.<locals>.product: sample 3: (float32[2, 3], 3.0) has no tensor on the device under test
  expected   'x' on second
  found      'x' on cpu
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         create the tensors of samples with make(...), make.tensor(...), or device=make.device""",
    )
    assert check(product, left_on_the_cpu, checks="quick", device="cpu").ok
    assert check(product, list(left_on_the_cpu(TensorFactory()))[:2], checks="schema", device="second:0").ok


class Kinked(torch.autograd.Function):
    """|x| with a wrong slope beside a kink, so that finite differences have to look for kinks."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.where(x < 0, -2.0, 1.0)


def test_a_wrong_gradient_is_found_beside_a_kink():
    x = torch.tensor([0.0, -1.0, 2.0], dtype=torch.float64, device="second", requires_grad=True)
    report = check(Kinked, [Sample(x)], checks="gradcheck")

    assert "the formula is wrong" in report.results[0].message


def test_leaks_counts_no_tensor_that_a_thread_of_autograd_is_about_to_release():
    for _ in range(12):
        report = check(smooth, checks="leaks", device="second", isolated=False)

        assert {"passed"} == {result.status for result in report.results}, report


def test_a_leak_is_found_on_the_device():
    kept = []

    class Appends(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            kept.append(grad.detach())
            return grad

    x = torch.ones(3, device="second", requires_grad=True)
    report = check(Appends, [Sample(x)], checks="leaks", isolated=False)

    assert "a forward and its backward leaves 1 tensors behind" in report.results[0].message


def test_a_sample_that_raises_on_the_cpu_is_not_called_on_the_device():
    (result,) = check(picked, checks="errors", device="second").results

    assert "it raises on cpu only, and its result on second is undefined" == result.message
    assert [] == [row for row in check(picked, checks="reference", device="second").results if row.status == "failed"]


@custom_op("second_device::spread", reference=True)
def spread(x: Tensor, rows: Tensor, count: int) -> Tensor:
    """Return sums of elements by row."""
    return x.new_zeros(count).index_add(0, rows, x)


@spread.register_samples
def _(make):
    yield Sample(make(3), make.tensor([0, 2, 2]), 3)


@custom_op("second_device::written", reference=True)
def written(x: Tensor, row: Tensor, place: int) -> Tensor:
    """Return x with another row in one place."""
    return x.index_copy(0, torch.full((1,), place, device=x.device), row)


@written.register_samples
def _(make):
    yield Sample(make(4, 3), make(1, 3), place=3)


@pytest.mark.parametrize("op", [picked, spread, written], ids=["rows", "count", "place"])
def test_no_call_that_checks_make_up_points_beyond_a_tensor(op):
    report = check(op, device="second", checks=MAKING_UP)

    assert report.ok, report


MAKING_UP = [
    "schema", "fake", "symbolic", "reference", "reference_gradients", "directional", "sizes", "shapes", "vmap",
    "low_precision", "layouts", "special_values", "recompilation", "nesting", "kernels", "errors",
]  # fmt: skip


@custom_op("second_device::product", reference=True, outputs=("out",))
def product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x @ weight."""
    return x @ weight


product.register_autocast("second", "lower")


@product.register_backward
def _(grad, x, weight):
    return grad @ weight.mT, x.mT @ grad


@product.register_samples
def _(make):
    yield Sample(make(3, 4), make(4, 2))


def test_autocast_is_checked_on_the_device():
    report = check(product, checks="autocast", device="second")

    assert {"passed"} == {result.status for result in report.results}, report
