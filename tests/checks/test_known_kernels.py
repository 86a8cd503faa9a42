"""The checks of known kernels ask each for what it takes, and tell a kernel from the fallback in its place."""

import pytest
import torch
from expecttest import assert_expected_inline
from torch import Tensor

from custom_autograd import Sample, check, custom_op
from custom_autograd.core.errors import KernelUnavailable, KernelWarning
from custom_autograd.kernels.lazy import LazyKernel
from custom_autograd.verification.checks import kernels


@custom_op("known_kernels::doubled", reference=True)
def doubled(x: Tensor, twice: bool = True) -> Tensor:
    return 2 * x if twice else x.clone()


doubled.register_kernel("cpu", lambda x, twice: 2 * x if twice else x.clone(), name="all")
doubled.register_kernel("cpu", lambda x, twice: x + x, name="twice", when=lambda twice: twice)


def test_an_empty_sample_that_a_condition_refuses_is_no_failure():
    report = check(doubled, [Sample(torch.ones(0), twice=False)], checks="kernels")

    assert ["passed"] == [result.status for result in report.results]


class Unmakeable(LazyKernel):
    """A kernel for which something is missing."""

    def load(self):
        raise KernelUnavailable("there is no compiler")


def result_with(fallback, name, checks):
    """What a check finds after the warning that the fallback stands in."""
    op = custom_op(f"known_kernels::{name}", reference=True)(triple)
    kernel = Unmakeable("unmakeable", fallback)
    op.register_kernel("cpu", kernel)
    with pytest.warns(KernelWarning, match="there is no compiler"):
        kernel(torch.ones(3))
    (result,) = check(op, [Sample(torch.ones(3))], checks=checks).results
    return result


def triple(x: Tensor) -> Tensor:
    return 3 * x


REPLACED = "the cpu kernel could not be made, and its fallback ran in its place"


def test_a_fallback_that_is_right_does_not_pass_for_its_kernel():
    result = result_with(triple, "right_fallback", "kernels")

    assert ("skipped", REPLACED) == (result.status, result.message)


def test_a_fallback_that_is_wrong_fails():
    result = result_with(torch.neg, "wrong_fallback", "kernels")

    assert "failed" == result.status


def test_bounds_of_the_default_kernel_alone_come_with_the_advice_that_the_other_did_not_run():
    result = result_with(triple, "bounded_fallback", "bounds")

    assert ("passed", REPLACED) == (result.status, result.advice)


def double(x: Tensor) -> None:
    x.mul_(2)


def test_what_a_kernel_of_another_device_writes_comes_home(monkeypatch):
    def declared(name, factor):
        op = custom_op(f"known_kernels::{name}", double, mutates_args="x", device_types="cpu")
        op.register_kernel("meta", lambda x: [x.mul_(factor), None][1])
        return op

    # No other device has memory that can be read here: tensors that are moved to "meta" are copied on the host.
    def to(x, *args, **options):
        return x.clone() if "meta" in args else move(x, *args, **options)

    move = Tensor.to
    monkeypatch.setattr(Tensor, "to", to)
    monkeypatch.setattr(kernels, "has_device", lambda device: True)
    results = [
        check(declared(name, factor), [Sample(torch.ones(3))], checks="kernels", isolated=False).results[0]
        for name, factor in (("written", 2), ("written_otherwise", 3))
    ]

    assert ["passed", "failed"] == [result.status for result in results]


def test_a_layout_that_only_a_kernel_refuses_gives_advice():
    def picky(x: Tensor) -> Tensor:
        if not x.is_contiguous():
            raise ValueError("gaps")
        return 3 * x

    op = custom_op("known_kernels::picky", reference=True)(triple)
    op.register_kernel("cpu", picky)

    (result,) = check(op, [Sample(torch.ones(3, 4))], checks="kernels").results

    assert "passed" == result.status
    assert_expected_inline(
        result.advice,
        """\
cpu kernel, transposed: the op refuses it (ValueError: gaps), which the default kernel computes; let the kernel that \
refuses say so with when=, and the next kernel runs (of a layout: with layouts=, and it is copied)""",
    )
