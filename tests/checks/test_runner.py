"""The runner: isolation, seeds, skips that stay visible, and what `check` refuses."""

import dataclasses
import logging
import random
import warnings
from logging.handlers import BufferingHandler
from types import SimpleNamespace

import pytest
import torch
from expecttest import assert_expected_inline

from custom_autograd import custom_op
from custom_autograd.core.errors import CheckError
from custom_autograd.schema.samples import Sample
from custom_autograd.verification import check as checking
from custom_autograd.verification.check import check
from custom_autograd.verification.checks import CHECKS
from custom_autograd.verification.harness import runner
from custom_autograd.verification.harness.base import PASSED, Check, failed, skipped
from custom_autograd.verification.harness.targets import target_of


def identity(x):
    return x * 1


class Scripted(Check):
    """A check that yields what it is told to."""

    name = "scripted"
    code = "Z01"
    purpose = "the runner does what it should"

    def __init__(self, *findings):
        self.findings = findings

    def run(self, target, sample):
        for finding in self.findings:
            if isinstance(finding, Exception):
                raise finding
            yield finding


class Drawing(Scripted):
    """A check that draws random numbers and keeps them."""

    drawn: list

    def run(self, target, sample):
        self.drawn = [float(torch.rand(())), random.random()]
        yield PASSED


def run(check, seed=0):
    case = runner.Case(target_of(identity), (Sample(torch.ones(2)),))
    (result,) = runner.run([case], [check], seed=seed).results
    return result


def test_exception_in_a_check_is_an_error_with_the_last_frames():
    result = run(Scripted(PASSED, KeyError("lost")))

    assert "error" == result.status
    assert result.message.startswith("KeyError: 'lost'\nlast frames:\n")
    assert "test_runner.py" in result.message


def test_exception_does_not_stop_the_next_check():
    case = runner.Case(target_of(identity), (Sample(torch.ones(2)),))
    report = runner.run([case], [Scripted(KeyError()), Scripted(PASSED)])

    assert ["error", "passed"] == [result.status for result in report.results]


def test_check_that_finds_nothing_to_look_at_is_skipped_not_passed():
    result = run(Scripted())

    assert ("skipped", "the check found nothing to look at") == (result.status, result.message)


def test_one_failure_among_passes_fails():
    assert ("failed", "wrong") == (
        run(Scripted(PASSED, failed("wrong"))).status,
        run(Scripted(failed("wrong"))).message,
    )


def test_what_is_left_out_of_a_pass_stays_visible():
    result = run(Scripted(PASSED, skipped("no device")))

    assert ("passed", "not checked: no device") == (result.status, result.message)


def test_random_numbers_repeat_with_the_seed_and_leave_the_global_state():
    drawing = Drawing()
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    run(drawing, seed=5)
    first = drawing.drawn
    torch.rand(3)
    run(drawing, seed=5)
    same = drawing.drawn
    run(drawing, seed=6)
    torch.set_rng_state(torch_state)

    assert first == same != drawing.drawn
    assert python_state == random.getstate()


def test_warnings_and_logs_of_a_check_are_silent_and_both_are_as_before(monkeypatch):
    logger, seen = logging.getLogger("torch.anything"), BufferingHandler(10)
    monkeypatch.setattr(logger, "handlers", [seen])

    class Loud(Scripted):
        def run(self, target, sample):
            warnings.warn("deprecated", DeprecationWarning, stacklevel=1)
            logger.error("about to raise")
            yield PASSED

    before = logging.root.manager.disable

    assert "passed" == run(Loud()).status
    assert ([], before) == (seen.buffer, logging.root.manager.disable)
    logger.error("heard")
    assert ["heard"] == [record.msg for record in seen.buffer]


def test_a_sample_without_an_argument_is_one_failure_before_all_checks():
    @custom_op("runner::scaled")
    def scaled(x: torch.Tensor, k: float) -> torch.Tensor:
        return x * k

    report = check(scaled, [Sample(torch.ones(3)), Sample(torch.ones(3), 2.0)], checks=["schema", "vmap", "errors"])

    assert [
        ("all checks", "sample 0: (float32[3])", "failed"),
        ("schema", "sample 1: (float32[3], 2.0)", "passed"),
        ("errors", "all samples", "skipped"),
        ("vmap", "sample 1: (float32[3], 2.0)", "passed"),
    ] == [(result.check, result.sample, result.status) for result in report.results]
    assert "the sample has no value for 'k'" == report.results[0].message


def test_check_that_needs_another_is_skipped_where_that_fails():
    class Dependent(Scripted):
        name = "dependent"
        needs = ("scripted",)

    samples = (Sample(torch.ones(2)).named("one"),)
    case = runner.Case(target_of(identity), samples)
    report = runner.run([case], [Scripted(failed("wrong")), Dependent(PASSED)])

    assert ["failed", "skipped"] == [result.status for result in report.results]
    assert "the check scripted fails first" == report.results[1].message


def test_global_random_state_is_as_before():
    before = torch.get_rng_state()
    check(identity, lambda make: [Sample(make(3))], checks=["gradcheck", "linearity", "vmap"])

    assert torch.equal(before, torch.get_rng_state())


def test_every_check_has_a_name_a_code_and_a_purpose_of_its_own():
    assert len(CHECKS) == len({check.name for check in CHECKS}) == len({check.code for check in CHECKS})
    assert all(check.purpose and check.purpose[-1] != "." for check in CHECKS)


def test_unknown_check_is_refused_with_the_nearest_name():
    with pytest.raises(CheckError) as caught:
        check(identity, [Sample(torch.ones(2))], checks=["gradient"])

    assert_expected_inline(
        str(caught.value),
        """\
check: there is no check called 'gradient'
  do         did you mean 'adjoint'? all are in docs/reference/checks.md; see 'custom-autograd check --help'""",
    )


def test_missing_samples_are_refused():
    with pytest.raises(CheckError) as caught:
        check(torch.ops.aten.sin.default)

    assert_expected_inline(
        str(caught.value),
        """\
aten::sin: there is nothing to check it on
  expected   at least one sample
  found      none
  do         register samples (register_samples), or give them: check(op, [Sample(...)])""",
    )


def test_value_that_is_no_sample_is_refused():
    with pytest.raises(CheckError, match="its samples are not all samples"):
        check(identity, [torch.ones(2)])


def test_target_that_cannot_be_called_is_refused():
    with pytest.raises(CheckError, match="this cannot be checked"):
        check(3, [Sample()])


def test_raise_on_failure_raises():
    with pytest.raises(CheckError, match="silently zero"):
        check(torch.Tensor.detach, [Sample(torch.ones(2))], checks=["gradcheck"], raise_on_failure=True)


def test_dtype_applies_to_samples_made_and_samples_given():
    made = checking.case_of(identity, lambda make: [Sample(make(2))], dtype=torch.bfloat16)
    given = checking.case_of(identity, [Sample(torch.ones(2, requires_grad=True))], dtype=torch.bfloat16)

    assert [torch.bfloat16] * 2 == [case.samples[0].tensors()[0].dtype for case in (made, given)]
    assert given.samples[0].tensors()[0].requires_grad


@pytest.fixture
def bring(monkeypatch):
    """A function that makes a package bring a check."""

    def brought(value):
        row = SimpleNamespace(name="brought", load=lambda: value)
        monkeypatch.setattr(checking, "entry_points", lambda group: [row])

    checking._checks_of_packages.cache_clear()
    yield brought
    checking._checks_of_packages.cache_clear()


def test_checks_of_other_packages_run_too(bring):
    bring(Scripted)

    assert "scripted" == checking.all_checks()[-1].name
    assert "skipped" == check(identity, [Sample(torch.ones(2))], checks=["scripted"]).results[0].status


def test_entry_point_that_is_no_check_is_refused(bring):
    bring(7)

    with pytest.raises(CheckError, match="entry point 'brought': what the group"):
        checking.all_checks()


@custom_op("runner::sourced", reference=True)
def sourced(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def raising_source():
    raise ValueError("rules that do not fit together")


def test_a_result_carries_the_group_of_its_check():
    report = check(identity, [Sample(torch.ones(2))], checks=["gradcheck"])

    assert ["derivatives"] == [result.group for result in report.results]


def test_a_report_has_the_generated_source_of_each_op_that_has_one():
    with_source = check(sourced, [Sample(torch.ones(2))], checks=["schema"])
    without = check(identity, [Sample(torch.ones(2))], checks=["schema"])

    assert {"runner::sourced": sourced.source} == with_source.sources
    assert {} == without.sources


def test_a_source_that_cannot_be_generated_does_not_stop_the_run():
    target = dataclasses.replace(target_of(identity), source=raising_source)
    report = runner.run([runner.Case(target, (Sample(torch.ones(2)),))], [Scripted(PASSED)])

    assert (["passed"], {}) == ([result.status for result in report.results], report.sources)


def test_each_check_is_told_before_it_looks():
    told = []
    case = runner.Case(target_of(identity), (Sample(torch.ones(2)), Sample(torch.ones(3))))
    runner.run(
        [case],
        [Scripted(PASSED)],
        on_start=lambda op, check, label: told.append((check.name, label)),
        on_result=lambda result: told.append(result.status),
    )

    labels = [f"sample {place}: (float32[{size}])" for place, size in enumerate((2, 3))]
    each = [row for label in labels for row in (("all checks", label), ("scripted", label), "passed")]
    assert [("scripted", ""), *each] == told


class Panic(BaseException):
    """An exception as PyO3 raises for a panic in Rust: it does not derive from Exception."""


def panics_at_strides(x):
    if not x.is_contiguous():
        raise Panic("strides")
    return x * 2


def test_a_panic_of_a_kernel_is_a_finding_and_the_other_checks_run():
    checks = ["directional", "layouts", "reuse"]
    report = check(panics_at_strides, [Sample(torch.ones(3))], checks=checks, isolated=False)

    assert {"directional": "passed", "layouts": "error", "reuse": "passed"} == {
        row.check: row.status for row in report.results
    }
