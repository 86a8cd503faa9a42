"""Each two typical changes of a call meet in a few calls, and what only their meeting makes is judged for that."""

import itertools
import random

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from custom_autograd import Sample, check, custom_op
from custom_autograd.verification.calls.changes import COTANGENTS, VALUES, Change
from custom_autograd.verification.calls.drawing import ROUNDS, TYPICAL, drawn, named, paired
from custom_autograd.verification.calls.exploration import Explorer
from custom_autograd.verification.calls.looking import Looker
from custom_autograd.verification.checks.explore import Explore
from custom_autograd.verification.harness.targets import target_of


def changes_of(keys, stage=VALUES):
    return [Change(key, f"{key} {text}", stage, lambda call: call) for key in keys for text in ("-> 1", "-> 257", "->")]


def pairs_in(cases):
    return {frozenset(pair) for case in cases for pair in itertools.combinations(case.changes, 2)}


@given(st.integers(0, 8), st.integers(0, 2**32))
def test_each_two_typical_changes_meet_in_every_round(count, seed):
    changes = changes_of(map(str, range(count)))
    typical = [change for change in changes if change.text.endswith(TYPICAL)]
    wanted = {frozenset(pair) for pair in itertools.combinations(typical, 2) if pair[0].key != pair[1].key}

    cases = list(paired(changes, set(), random.Random(seed), lambda: True))

    assert wanted <= pairs_in(cases)
    assert all(len({change.key for change in case.changes}) == len(case.changes) <= 4 for case in cases)
    assert len(cases) <= ROUNDS * max(1, len(pairs_in(cases)))


def test_the_changes_of_a_case_that_is_not_judged_meet_once_alone():
    changes = changes_of("abcd")

    cases = list(paired(changes, set(), random.Random(0), lambda: False))

    alone = [frozenset(case.texts) for case in cases if len(case.texts) == 2]
    assert len(alone) == len(set(alone))
    assert {frozenset(one.text for one in pair) for pair in pairs_in(cases)} == set(alone)


def test_what_does_not_fit_alone_meets_other_shapes_only():
    changes = [*changes_of("abc"), Change("shapes", "one more dimension in front", 0, lambda call: call)]
    unfit = {change.text for change in changes if change.key == "a"}

    found = pairs_in(paired(changes, unfit, random.Random(0), lambda: True))

    assert {"shapes"} == {other.key for pair in found for other in pair if {"a"} < {one.key for one in pair}} - {"a"}


def test_large_numbers_are_not_in_a_case_of_cotangents():
    large = Change("x", "numbers of 'x' 1000 times as large", VALUES, lambda call: call)
    sent = Change("cotangent", "a transposed cotangent", COTANGENTS, lambda call: call)

    assert [] == list(paired([large, sent], set(), random.Random(0), lambda: True))


def test_draws_at_random_end_where_nothing_can_be_changed():
    assert [] == list(drawn([], random.Random(0)))


@custom_op("faults_drawn_pairs::shifted", reference=True)
def shifted(x: Tensor) -> Tensor:
    return (x - x.amax(-1, keepdim=True)).exp().sum(-1)


def looker_of(op, *tensors, told=frozenset()):
    return Looker(target_of(op), Sample(*tensors), told=told)


def test_changes_that_other_checks_looked_at_are_not_drawn_alone_again():
    def alone(told):
        looker, seen = looker_of(shifted, torch.randn(4, 3), told=told), []
        looker.tell = seen.append
        assert [] == list(Explorer(looker, seconds=20.0).explore())
        return {texts[0] for texts in seen if len(texts) == 1}

    layouts = {"'x' transposed", "'x' with rows apart"}
    assert layouts <= alone(frozenset())
    assert set() == layouts & alone(frozenset({"layouts"}))


def test_a_check_that_failed_has_told_nothing():
    seen = []

    @custom_op("faults_drawn_pairs::lost_rows", reference=True)
    def lost_rows(x: Tensor) -> Tensor:
        return x * 1

    @lost_rows.register_kernel("cpu", name="strided")
    def _(x):
        return x * (1 if x.is_contiguous() else 2)

    report = check(
        lost_rows, [Sample(torch.ones(4, 3))], checks=["layouts", Explore(30.0, tell=seen.append)], isolated=False
    )

    assert ["failed", "failed"] == [row.status for row in report.results]
    assert "'x' transposed" in report.results[1].message or "'x' with rows apart" in report.results[1].message


@custom_op("faults_drawn_pairs::cubed", reference=True)
def cubed(x: Tensor) -> Tensor:
    return x.double().pow(3).div(1e30).to(x.dtype)


@cubed.register_kernel("cpu", name="narrow")
def _(x):
    return x.pow(3) / 1e30


def test_numbers_beyond_float32_that_are_right_in_float64_are_no_fault_of_several_changes():
    looker = looker_of(cubed, torch.full((4,), 2e12))
    case = named(looker.changes(), ["numbers of 'x' 20 times as large", "'x' with a step of 2 along dimension 0"])

    assert "its numbers are too large for the dtype" == looker.look(case).reason


@custom_op("faults_drawn_pairs::masked", reference=True)
def masked(x: Tensor) -> Tensor:
    return x * torch.arange(len(x)).lt(3).to(x)[:, None]


@masked.register_kernel("cpu", name="skips")
def _(x):
    return torch.where(torch.arange(len(x))[:, None] < 3, x, 0.0)


def test_what_an_op_masks_need_not_be_nan_where_it_meets_another_change():
    looker = looker_of(masked, torch.randn(4, 3))
    case = named(looker.changes(), ["numbers of 'x' with a row of -inf", "size 3 -> 1"])

    assert looker.look(case).reason
    assert looker.look(named(looker.changes(), ["numbers of 'x' with a row of -inf"])).fault is not None


@custom_op("faults_drawn_pairs::soft_minimum", reference=True)
def soft_minimum(x: Tensor) -> Tensor:
    return -(-x).logsumexp(-1)


@soft_minimum.register_kernel("cpu", name="zero")
def _(x):
    if x.shape[-1] != 1 or not x.isfinite().all():
        return -(-x).logsumexp(-1)
    least = x.amin(-1, keepdim=True).clamp(max=0)  # all are far above it only where a row is large and positive
    return least.squeeze(-1) - (least - x).exp().sum(-1).log()


def test_a_fault_that_takes_two_changes_is_found_within_the_default_budget():
    looker = looker_of(soft_minimum, torch.tensor([[0.5, -0.25, -0.75], [1.0, 0.5, -0.5]]))
    explorer = Explorer(looker, seconds=20.0)  # the machine may be slow: what counts is the number of draws
    verdict = next(explorer.explore())

    assert 2 == len(verdict.case.texts)
    assert "size 3 -> 1" in verdict.case.texts
    assert explorer.draws < 400
