"""The checks of known kernels ask each for what it takes, and tell a kernel from the fallback in its place."""

import pytest
import torch
from expecttest import assert_expected_inline
from tables import each
from torch import Tensor

from custom_autograd import Sample, check, custom_op
from custom_autograd.core.errors import KernelUnavailable, KernelWarning
from custom_autograd.kernels.lazy_kernel import LazyKernel
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


def declared_with(fallback, name, *, is_called):
    """Return an op with a kernel that cannot be made, after the warning that its fallback runs, or before it."""
    op = custom_op(f"known_kernels::{name}", reference=True)(triple)
    kernel = Unmakeable("unmakeable", fallback)
    op.register_kernel("cpu", kernel)
    if is_called:
        with pytest.warns(KernelWarning, match="there is no compiler"):
            op(torch.ones(3))
    return op


def triple(x: Tensor) -> Tensor:
    return 3 * x


REPLACED = "the cpu kernel could not be made, and its fallback ran in its place"


@each("is_called", [False, True])
@each("fallback", [triple, None])
def test_a_kernel_that_cannot_be_made_fails_in_any_order_of_calls(fallback, is_called):
    name = f"unmakeable_{fallback is None}_{is_called}"
    op = declared_with(fallback, name, is_called=is_called)

    results = check(op, [Sample(torch.ones(3))], checks=["schema", "reference", "kernels"]).results

    assert ["kernels"] == [result.check for result in results if result.is_finding]
    assert "the cpu kernel does not run: there is no compiler" == results[-1].message


def test_a_default_kernel_that_cannot_be_made_fails_too():
    kernel = Unmakeable("unmakeable", triple)
    op = custom_op("known_kernels::default", kernel, schema="(Tensor x) -> Tensor")

    (result,) = check(op, [Sample(torch.ones(3))], checks="kernels").results

    assert "the default kernel does not run: there is no compiler" == result.message


class UnmakeableRule(Unmakeable):
    """A backward for which something is missing."""

    def __call__(self, grad):
        return super().__call__(grad)


def test_a_rule_that_cannot_be_made_fails_too():
    op = custom_op("known_kernels::rule", triple)
    op.register_backward(UnmakeableRule("unmakeable", lambda grad: 3 * grad))

    (result,) = check(op, [Sample(torch.ones(3, requires_grad=True))], checks="kernels").results

    assert "the backward rule does not run: there is no compiler" == result.message


def test_bounds_of_the_default_kernel_alone_come_with_the_advice_that_the_other_did_not_run():
    op = declared_with(triple, "bounded_fallback", is_called=True)

    (result,) = check(op, [Sample(torch.ones(3))], checks="bounds").results

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
cpu kernel, 'x' with rows apart: the op refuses it (ValueError: gaps), which the default kernel computes; let the \
kernel that refuses say so with when=, and the next kernel runs (of a layout: with layouts=, and it is copied)""",
    )
