"""Ops that take 8-bit floats, in which PyTorch does not calculate: their other arguments are checked as usual."""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


def scaled_product(a: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    return a @ (codes.to(scale.dtype) * scale)


@custom_op("eight_bit_floats::right")
def right(a: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    return scaled_product(a, codes, scale)


@custom_op("eight_bit_floats::wrong")
def wrong(a: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    return scaled_product(a, codes, scale)


for op in (right, wrong):
    op.register_fake(lambda a, codes, scale: a.new_empty(a.shape[:-1] + codes.shape[1:]))


@right.register_backward
def right_backward(grad: Tensor, a: Tensor, codes: Tensor, scale: Tensor) -> dict[str, object]:
    wide = codes.to(scale.dtype)
    along = a.movedim(-1, 0).flatten(1) @ grad.reshape(-1, *codes.shape[1:])
    return {"a": lambda: grad @ (wide * scale).mT, "codes": None, "scale": lambda: (along * wide).sum()}


@wrong.register_backward
def wrong_backward(grad: Tensor, a: Tensor, codes: Tensor, scale: Tensor) -> dict[str, object]:
    wide = codes.to(scale.dtype)
    along = a.movedim(-1, 0).flatten(1) @ grad.reshape(-1, *codes.shape[1:])
    return {"a": lambda: grad @ wide.mT, "codes": None, "scale": lambda: (along * wide).sum()}


for op in (right, wrong):

    @op.register_samples
    def _(make):
        codes = torch.tensor([[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25]])
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            yield Sample(make(4, 3), codes.to(dtype), make())


def test_an_op_that_takes_8_bit_floats_is_checked_in_every_way():
    checks = ["directional", "determinism", "reuse", "saved_hooks", "subclasses", "threads", "vmap", "explore=1s"]
    report = right.check(checks=checks, raise_on_failure=False)

    assert {(check, "passed") for check in [*checks[:-1], "explore"]} == {
        (result.check, result.status) for result in report.results
    }, str(report)


def test_a_wrong_gradient_beside_8_bit_floats_is_found():
    report = wrong.check(checks=["directional", "gradcheck"], raise_on_failure=False)

    assert {("directional", "failed"), ("gradcheck", "failed")} == {
        (result.check, result.status) for result in report.results
    }


@custom_op("eight_bit_floats::store_", mutates_args=("cache",))
def store_(cache: Tensor, x: Tensor, at: int) -> None:
    cache[at].copy_(x)


@store_.register_samples
def _(make):
    yield Sample(torch.zeros(3, 4).to(torch.float8_e4m3fn), make(4).detach(), 1)


def test_an_op_that_writes_to_8_bit_floats_is_checked():
    report = store_.check(checks=["schema", "determinism", "fake", "vmap", "explore=1s"], raise_on_failure=False)

    assert report.ok, str(report)
    assert {"schema", "fake", "explore"} <= {result.check for result in report.results if result.status == "passed"}
