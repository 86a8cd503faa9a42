"""A crash in a kernel is a finding of `check`, with the check, the sample and the call."""

import ctypes
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from verdicts import verdict

from custom_autograd import Sample, check, custom_op
from custom_autograd.verification.checks import explore
from custom_autograd.verification.processes import running
from custom_autograd.verification.processes.process import CannotForkError

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only"),
    pytest.mark.skipif(sys.gettrace() is not None, reason="under a tracer nothing is forked, and a crash is one"),
]

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


@custom_op("isolation::crashes_on_eight_rows", reference=True)
def crashes_on_eight_rows(x: Tensor) -> Tensor:
    return x * 2


@crashes_on_eight_rows.register_kernel("cpu", name="blocks")
def _(x):
    if x.shape[0] == 8:
        ctypes.string_at(0)
    return x * (3 if x.shape[0] > 200 else 2)


@custom_op("isolation::crashes_on_other_rows", reference=True)
def crashes_on_other_rows(x: Tensor) -> Tensor:
    return x * 2


@crashes_on_other_rows.register_kernel("cpu", name="blocks")
def _(x):
    if x.shape[0] > 3:
        ctypes.string_at(0)
    return x * 2


def samples():
    return [Sample(torch.ones(3)).named("three"), Sample(torch.ones(7)).named("seven")]


def test_no_check_is_run_on_a_sample_whose_first_call_crashes_and_every_check_on_the_others():
    others = [*samples(), Sample(torch.ones(5)).named("five")]
    report = check(crashes_on_seven, others, checks=["schema", "determinism"])

    crash, *rest = report.results
    assert ("error", "seven", "all checks") == (crash.status, crash.sample, crash.check)
    assert "SIGSEGV, a segmentation fault; no check was run on it" in crash.message
    assert "crashes_on_seven" in crash.message
    assert "to reproduce: check(op, samples, seed=0, isolated=False)" in crash.message
    assert "torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]" in crash.script
    rows = [(row.check, row.sample, row.status) for row in rest]
    assert [(c, s, "passed") for c in ("schema", "determinism") for s in ("three", "five")] == rows


def test_the_checks_that_follow_one_that_crashes_are_run():
    report = check(crashes_when_grown, [Sample(torch.ones(2, 3))], checks=["determinism", "symbolic", "explore"])

    (_, crash, *rest), kinds = report.results, [(row.check, row.status) for row in report.results]
    assert [("determinism", "passed"), ("symbolic", "error")] == kinds[:2]
    assert {"explore"} == {row.check for row in rest}
    assert "SIGSEGV, a segmentation fault; the checks that follow were run\n" in crash.message
    assert 'checks=["symbolic"]' in crash.message


def test_after_three_crashes_no_check_begins():
    crashing = [Sample(torch.ones(7)).named(name) for name in "abcd"]
    report = check(crashes_on_seven, [*samples()[:1], *crashing], checks=["schema", "determinism"])

    ends = [row.message.partition("; ")[2].partition("\n")[0] for row in report.results]
    assert ["no check was run on it"] * 2 + ["the checks that follow were not run"] == ends
    assert [("all checks", name) for name in "abc"] == [(row.check, row.sample) for row in report.results]


def test_a_crash_is_an_error_where_no_exit_code_of_a_child_is_known(sigchld_ignored):
    """It passed, since a child without an exit code was taken for one that had finished."""
    report = check(crashes_on_eight_rows, [Sample(torch.ones(8, 2))], checks=["kernels"], raise_on_failure=False)

    assert not report.ok
    assert "ended early" in report.results[-1].message


def test_the_call_of_a_size_that_no_sample_has_is_named():
    crash = verdict("symbolic", [Sample(torch.ones(2, 3))])(crashes_when_grown, isolated=True)

    assert "error" == crash.status
    assert "last call: Sample(float32[6, 9])" in crash.message


def test_the_draws_after_one_that_ends_the_process_are_run_and_so_are_the_checks_that_follow(monkeypatch):
    monkeypatch.setattr(explore, "SECONDS", 20.0)
    report = check(crashes_on_eight_rows, samples()[:1], checks=["reference", "explore", "saved"])

    before, crash, wrong, after = report.results
    assert ["reference", "explore", "explore", "saved"] == [row.check for row in report.results]
    assert ("passed", "error", "failed", "passed") == (before.status, crash.status, wrong.status, after.status)
    assert "size 3 -> 8: the process was ended by SIGSEGV, a segmentation fault; the rest was run" in crash.message
    assert "last call: Sample(float32[8])" in crash.message
    assert "Explore(case=('size 3 -> 8',))" in crash.script
    assert "size 3 -> 256: output 0[" in wrong.message


def test_draws_that_end_their_process_are_left_out_after_the_third(monkeypatch):
    monkeypatch.setattr(explore, "SECONDS", 20.0)
    *crashes, after = check(crashes_on_other_rows, samples()[:1], checks=["explore", "saved"]).results

    ends = [crash.message.partition("; ")[2].partition("\n")[0] for crash in crashes]
    assert ["the rest was run without it"] * 2 + ["further draws were left out"] == ends
    assert ("saved", "passed") == (after.check, after.status)


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


def test_checks_of_several_threads_leave_each_other_alone():
    """They change settings of the process: the check process_state would see those of another thread."""
    sample = Sample(torch.ones(3))

    def work(_: int) -> list[str]:
        report = check(torch.sin, [sample], checks=["process_state", "uninitialised", "threads"], isolated=False)
        return [result.status for result in report.results]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(12)))

    assert [["passed"] * 3] * 12 == found
