"""The check `sizes` fails an op that is wrong for sizes that its samples do not have."""

import pytest
import torch
from expecttest import assert_expected_inline
from tables import each
from torch import Tensor
from torch.autograd import Function
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.checks.rows import Sizes
from custom_autograd.verification.harness.targets import Target, TargetArgument

ARGUMENTS = (TargetArgument("x"), TargetArgument("w"))


def result_of(call):
    target = Target("faults::scale", call, call, ARGUMENTS, reference=torch.mul, kernels={"": call})
    return verdict("sizes", lambda make: [Sample(make(4, 8), make(8))])(target)


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum_to_size(w.shape)


class TailUnwritten(Scaled):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        out = torch.zeros_like(x)
        out.view(-1)[:256] = (x * w).view(-1)[:256]
        return out


class NoEmpty(Scaled):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w + 0 * [*x.shape, 1][0] / x.shape[0]


class WrongForOneRow(Scaled):
    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum_to_size(w.shape) * (1 if len(x) > 1 else 2)


FAULTS = {
    TailUnwritten: ("size 4 -> 257: output 0[", "elements are wrong"),
    NoEmpty: ("size 4 -> 0: the op raises ZeroDivisionError: ", "a case it was not written for"),
    WrongForOneRow: ("size 4 -> 1: gradient of 'w'[", "a factor 2"),
}


def test_right_op_passes():
    assert "passed" == result_of(Scaled.apply).status


@each("fault", FAULTS)
def test_wrong_size_fails(fault):
    result = result_of(fault.apply)

    message, cause = FAULTS[fault]
    assert message in result.message
    assert cause in result.cause or "tail" in result.cause


def test_sizes_that_the_reference_refuses_are_left_out():
    def reference(x: Tensor) -> Tensor:
        return x.view(-1, 2).sum(-1)

    target = Target("faults::pairs", reference, reference, (TargetArgument("x"),), reference=reference)
    result = verdict("sizes", lambda make: [Sample(make(6))])(target)

    assert ("passed", "") == (result.status, result.message)


@custom_op("faults_sizes::of_one", reference=True)
def of_one(x: Tensor, b: Tensor) -> Tensor:
    return x.mean(-1) + b


@of_one.register_backward
def _(grad, x):
    return {"x": (grad[..., None] / x.shape[-1]).expand(x.shape), "b": grad[0]}


def test_a_batch_of_one_in_every_sample_hides_nothing():
    result = verdict("sizes", lambda make: [Sample(make(1, 4, 8), make(4))])(of_one)

    assert "failed" == result.status
    assert "size 1 -> 3: gradient of 'b'[" in result.message


def test_a_dimension_of_one_that_is_broadcast_stays():
    """The op takes one number for each row, and its reference would take more."""

    def by_rows(x: Tensor, by: Tensor) -> Tensor:
        return x * by[:, :1]

    target = Target("by_rows", by_rows, by_rows, ARGUMENTS, reference=torch.mul, kernels={"": by_rows})

    assert "passed" == verdict("sizes", lambda make: [Sample(make(4, 3), make(4, 1))])(target).status


def picky_result(name, reference):
    op = custom_op(f"faults_sizes::{name}", reference=True)(reference)
    op.register_kernel("cpu", raise_for_one_row)
    return verdict("sizes", [Sample(torch.ones(4, 3))])(op)


def raise_for_one_row(x: Tensor) -> Tensor:
    if x.shape[:1] == (1,):
        raise ValueError("one row is too few")
    return x.sum(-1)


def test_kernel_that_refuses_what_the_default_kernel_computes_is_advised_to_say_so():
    def total(x: Tensor) -> Tensor:
        return x.sum(-1)

    result = picky_result("total", total)

    assert "passed" == result.status
    assert_expected_inline(
        result.advice,
        """\
size 4 -> 1: the op refuses it (ValueError: one row is too few), which the default kernel computes; let the kernel \
that refuses say so with when=, and the next kernel runs (of a layout: with layouts=, and it is copied)""",
    )


def test_size_that_the_default_kernel_refuses_too_gives_no_advice():
    result = picky_result("picky_total", raise_for_one_row)

    assert ("passed", "") == (result.status, result.advice)


def test_an_op_that_takes_long_is_not_called_with_every_size(monkeypatch):
    monkeypatch.setattr(Sizes, "longest", 0.0)
    result = result_of(torch.mul)

    assert result.status == "skipped"
    assert result.message.endswith("calls are left out, because the others took 0 s")


def packed(x):
    even = torch.nn.functional.pad(x, (0, len(x) % 2))
    return even[0::2] + 16 * even[1::2]


def pairs_packed(x):
    pairs = len(x) // 2
    out = x.new_zeros((len(x) + 1) // 2)
    out[:pairs] = x[0 : 2 * pairs : 2] + 16 * x[1 : 2 * pairs : 2]
    return out


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_integers_that_are_what_is_computed_with_get_other_sizes(dtype):
    def result_of(call):
        target = Target("faults::pack", call, call, ARGUMENTS[:1], reference=packed, kernels={"": call})
        return verdict("sizes", [Sample(torch.tensor([1, 15, 7, 9], dtype=dtype))])(target)

    assert "passed" == result_of(packed).status
    assert "size 4 -> 1: output 0[0] = 0, expected 1" in result_of(pairs_packed).message


def test_integers_that_point_at_numbers_keep_their_sizes():
    def taken(x, index):
        assert len(index) == 3
        return x[index]

    target = Target("faults::take", taken, taken, (TargetArgument("x"), TargetArgument("index")), reference=taken)
    result = verdict("sizes", [Sample(torch.rand(5, 8), torch.tensor([0, 4, 2]))])(target)

    assert "passed" == result.status
