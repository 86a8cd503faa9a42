"""A crash in a kernel is a finding of `check`, with the check, the sample and the call."""

import ctypes
import sys
import warnings

import pytest
import torch
from torch import Tensor
from verdicts import verdict

from custom_autograd import Sample, check, custom_op
from custom_autograd.verification.isolation import running
from custom_autograd.verification.isolation.forking import CannotForkError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")

CALLS = []


def plain(x):
    CALLS.append(tuple(x.shape))
    return x * 2


def crashes_on_seven(x):
    if x.shape[0] == 7:
        ctypes.string_at(0)
    return x * 2


@custom_op("isolation::crashes_when_grown")
def crashes_when_grown(x: Tensor) -> Tensor:
    if x.numel() > 6:
        ctypes.string_at(0)
    return x * 2


@crashes_when_grown.register_fake
def _(x):
    return torch.empty_like(x)


def samples():
    return [Sample(torch.ones(3)).named("three"), Sample(torch.ones(7)).named("seven")]


def test_a_crash_is_an_error_of_its_sample_and_results_before_it_are_kept():
    report = check(crashes_on_seven, samples(), checks=["schema"])

    passed, crash = report.results
    assert ("passed", "three") == (passed.status, passed.sample)
    assert ("error", "seven", "schema") == (crash.status, crash.sample, crash.check)
    assert "SIGSEGV" in crash.message
    assert "crashes_on_seven" in crash.message
    assert 'checks=["schema"]' in crash.message
    assert "torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]" in crash.script


def test_the_call_of_a_size_that_no_sample_has_is_named():
    crash = verdict("symbolic", [Sample(torch.ones(2, 3))])(crashes_when_grown)

    assert "error" == crash.status
    assert "last call: Sample(float32[6, 9])" in crash.message


def test_what_a_forked_check_changes_stays_there():
    CALLS.clear()

    assert check(plain, [Sample(torch.ones(3))], checks=["schema"]).ok
    assert [] == CALLS
    assert check(plain, [Sample(torch.ones(3))], checks=["schema"], isolated=False).ok
    assert CALLS


def test_both_ways_find_the_same():
    def of(isolated):
        report = check(torch.sin, [Sample(torch.ones(3, 2))], checks=["schema", "gradcheck", "vmap"], isolated=isolated)
        return [(row.op, row.check, row.sample, row.status, row.message) for row in report.results]

    assert of(isolated=False) == of(isolated=True)


@pytest.mark.parametrize("reason", ["is_sound", "engine"])
def test_where_no_process_can_be_forked_checks_run_in_this_one(monkeypatch, reason):
    def cannot(work, hear):
        raise CannotForkError

    monkeypatch.setattr(running, "is_sound", lambda: reason != "is_sound")
    monkeypatch.setattr(running, "run_forked", cannot)
    CALLS.clear()

    assert check(plain, [Sample(torch.ones(3))], checks=["schema"]).ok
    assert CALLS


def test_a_fork_beside_other_threads_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check(torch.sin, [Sample(torch.ones(3))], checks=["schema"]).ok
