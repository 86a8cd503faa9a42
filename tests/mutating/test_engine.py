"""What comes of mutants: noticed, survived, no change, not reached; and what cannot be started."""

import pytest
import torch
from torch import Tensor

from custom_autograd import CheckError, Sample, custom_op
from custom_autograd.verification.check import select_checks
from custom_autograd.verification.mutation.engine import MutantVerdict as Verdict
from custom_autograd.verification.mutation.engine import by_checks, mutate, require_passing


@custom_op("mutate_engine::identity", reference=True)
def identity(x: Tensor) -> Tensor:
    return x.clone()


@identity.register_backward
def _(grad):
    return grad.clone()


@identity.register_kernel("cuda")
def _(x):
    return x.clone()


@identity.register_samples
def _(make):
    yield Sample(make(3))
    yield Sample(make(3).detach()).raises(ValueError)


@custom_op("mutate_engine::wrong", reference=True)
def wrong(x: Tensor) -> Tensor:
    return 2 * x


@wrong.register_backward
def _(grad):
    return 3 * grad


@wrong.register_samples
def _(make):
    yield Sample(make(3))


@custom_op("mutate_engine::shifted", reference=True)
def shifted(x: Tensor, shift: Tensor | None = None) -> Tensor:
    return x.clone() if shift is None else x + shift


@shifted.register_backward
def _(grad):
    return {"x": grad.clone(), "shift": grad.clone()}


@shifted.register_samples
def _(make):
    yield Sample(make(3))


def statuses(*operators, checks=("gradcheck",)):
    outcomes = mutate([identity], by_checks(select_checks(checks)), operators=operators)
    return {(row.rule, row.operator): row.status for row in outcomes}


def test_check_that_fails_notices():
    assert statuses("sign") == {("backward", "sign"): "noticed"}


def test_outcome_names_the_check_and_what_it_says():
    (outcome,) = mutate([identity], by_checks(select_checks(["gradcheck"])), operators=["sign"])

    assert outcome.noticed_by == ("gradcheck",)
    assert "disagrees with finite differences" in outcome.message


def test_change_that_no_check_looks_for_survives():
    assert statuses("abs", checks=("schema",)) == {("backward", "abs"): "survived"}


def test_change_without_effect_on_the_samples_is_no_survivor():
    assert statuses("transpose") == {("backward", "transpose"): "no change"}


def test_gradient_that_no_sample_wants_is_no_survivor():
    outcomes = mutate([shifted], by_checks(select_checks(["gradcheck"])), operators=["drop"])

    assert [("drop[x]", "noticed"), ("drop[shift]", "no change")] == [(row.operator, row.status) for row in outcomes]


def test_kernel_that_the_samples_never_call_is_not_reached():
    found = statuses("factor")

    assert found["kernel cuda", "factor"] == "not reached"


def test_judge_is_not_asked_about_what_changes_nothing():
    asked = []

    def judge(op, mutant):
        asked.append(mutant.label)
        return Verdict()

    list(mutate([identity], judge, operators=["transpose", "sign"]))

    assert asked == ["sign"]


def test_op_whose_check_fails_as_it_is_is_refused():
    with pytest.raises(CheckError, match="the check gradcheck fails before anything is changed"):
        require_passing([wrong], select_checks(["gradcheck"]))


def test_unknown_operator_is_refused_with_a_suggestion():
    with pytest.raises(CheckError, match=r"there is no operator called 'sing'\n.*did you mean 'sign'"):
        list(mutate([identity], lambda op, mutant: Verdict(), operators=["sing"]))


def test_plain_callable_is_refused():
    with pytest.raises(CheckError, match="sin: there is nothing to change"):
        list(mutate([torch.sin], lambda op, mutant: Verdict()))
