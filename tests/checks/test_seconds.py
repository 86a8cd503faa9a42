"""A budget of CPU time for each op: `check(seconds=...)` and `--seconds`."""

import pytest
import torch
from torch import Tensor

from custom_autograd import Sample, check, custom_op
from custom_autograd.cli import main
from custom_autograd.core.durations import seconds_in
from custom_autograd.core.errors import CheckError
from custom_autograd.verification.checks.explore import Explore
from custom_autograd.verification.report.results import Result
from custom_autograd.verification.report.text import format_durations


def busy(x):
    total = x
    for _ in range(2000):
        total = total + 0 * x
    return total


def test_what_is_not_reached_is_listed_as_skipped():
    samples = [Sample(torch.ones(n)) for n in (2, 3, 4)]
    report = check(busy, samples, checks=["determinism", "layouts", "explore"], seconds=1e-3, isolated=False)
    skipped = {(row.check, row.sample): row.message for row in report.results if row.status == "skipped"}
    reason = "not reached in 0.001 s of CPU time; give the op more seconds"
    assert reason == skipped["layouts", "all samples"]
    assert reason == skipped["determinism", "further samples"]
    assert report.ok


def test_a_run_with_time_left_is_whole():
    report = check(busy, [Sample(torch.ones(2))], checks=["determinism"], seconds=1e6, isolated=False)
    assert ["passed"] == [row.status for row in report.results]


@custom_op("checks_seconds::halved", reference=True)
def halved(x: Tensor) -> Tensor:
    return x / 2


def test_an_op_passes_its_budget_on():
    report = halved.check([Sample(torch.ones(2))], checks=["determinism", "layouts"], seconds=1e-9, isolated=False)

    reason = "not reached in 1e-09 s of CPU time; give the op more seconds"
    assert [reason] * 2 == [row.message for row in report.results]


def test_draws_take_half_of_what_is_left():
    assert 2.0 == Explore(8.0).within(4.0).budget
    assert 8.0 == Explore(8.0).within(40.0).budget
    assert 8.0 == Explore(8.0).within(float("inf")).budget


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), "60"])
def test_a_budget_is_a_positive_number(seconds):
    with pytest.raises(CheckError, match="the option 'seconds'"):
        check(busy, [Sample(torch.ones(2))], seconds=seconds)


@pytest.mark.parametrize("text", ["", "0", "fast", "-1s", "1d", "1e3"])
def test_a_time_that_is_none(text, capsys):
    assert seconds_in(text) is None
    with pytest.raises(SystemExit):
        main(["check", "x.py", f"--seconds={text}"])
    assert "a time is such as 30s, 2m or 1h" in capsys.readouterr().err


def test_durations_name_the_dearest_runs():
    rows = [Result("ns::op", "fake", f"sample {i}", "passed", seconds=i / 4) for i in range(8)]
    rows.append(Result("ns::op", "explore", "sample 1", "passed", seconds=5.0, measures={"draws": 40.0}))
    table = format_durations(rows).split("\n\n")[1].splitlines()
    assert "ns::op  explore  5.00     sample 1, 40 drawn calls" == table[2]
    assert 7 == len(table)
