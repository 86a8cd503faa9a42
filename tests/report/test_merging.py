"""Reports of shards and of different ops become one report, which is refused if anything is missing or doubled."""

import json
from dataclasses import replace

import pytest
from expecttest import assert_expected_inline
from tables import each

from custom_autograd.core.errors import CheckError
from custom_autograd.verification.report import Report, Result
from custom_autograd.verification.report.report import Part, merge
from custom_autograd.verification.report.results import Run, Shard

OPS = tuple(f"ns::{letter}" for letter in "dacbfe")
RUN = Run(("my_ops",), OPS, ("fake", "gradcheck"), "cpu", None, 0, "2.13.0", "0.1")
WHOLE = Report(
    tuple(Result(op, check, "small", "passed") for op in OPS for check in RUN.checks),
    {op: f"source of {op}" for op in OPS},
    RUN,
)


def shard(number, count, **changes):
    """One shard of WHOLE, whose run has other conditions where they are given."""
    run = replace(RUN, shard=Shard(number, count), **changes)
    results = tuple(result for result in WHOLE.results if run.shard.holds(result.op))
    return Part(f"shard-{number}.json", Report(results, {op: WHOLE.sources[op] for op in run.own_ops()}, run))


def shards(count):
    return [shard(number, count) for number in range(1, count + 1)]


def message(*parts):
    with pytest.raises(CheckError) as caught:
        merge(parts)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------- shards


@each("count", [1, 2, 3, 7, 50])
def test_each_op_is_in_exactly_one_shard(count):
    holders = {op: [number for number in range(1, count + 1) if Shard(number, count).holds(op)] for op in OPS}

    assert dict.fromkeys(OPS, 1) == {op: len(numbers) for op, numbers in holders.items()}


def test_the_shard_of_an_op_stays_the_same():
    # Pinned: machines that run different versions of Python must agree on it.
    names = ("ns::op", "mylib::rms_norm", "é", "\ud800")

    assert [14, 11, 13, 13] == [next(n for n in range(1, 17) if Shard(n, 16).holds(name)) for name in names]


@each("count", [1, 2, 3, 7])
def test_all_shards_in_any_order_are_the_whole_report(count):
    assert WHOLE == merge(shards(count)) == merge(shards(count)[::-1])


def test_the_sources_are_in_the_order_of_the_run():
    assert list(OPS) == list(merge(shards(3)[::-1]).sources)


def test_a_merged_report_merges_again():
    merged = merge(shards(3))

    assert merged == merge([Part("merged.json", Report.from_json(merged.to_json()))])


def test_a_run_comes_back_from_json():
    for report in (WHOLE, shard(2, 3).report, replace(WHOLE, run=None)):
        assert report == Report.from_json(report.to_json())


def test_a_report_of_an_earlier_version_has_no_run():
    document = json.loads(WHOLE.to_json())
    del document["run"]

    assert replace(WHOLE, run=None) == Report.from_json(json.dumps(document))


# ------------------------------------------------------------------------------------------------------ refusals


def test_missing_shards_are_named():
    assert_expected_inline(
        message(shard(1, 4), shard(3, 4)),
        """\
shard-1.json: it is one of 4 shards, of which these are missing: 2/4, 4/4
  do         run custom-autograd check my_ops --shard 2/4 --json FILE, with the other options of the run""",
    )


def test_of_many_missing_shards_the_first_are_named():
    assert "missing: 2/1000000000, 3/1000000000" in message(shard(1, 10**9))


def test_a_shard_that_is_given_twice_is_refused():
    text = message(shard(1, 2), shard(2, 2), replace(shard(1, 2), file="copy.json"))
    assert_expected_inline(
        text,
        """\
copy.json: it is shard 1/2, and so is shard-1.json
  do         leave one of them out""",
    )


def test_a_run_that_was_stopped_is_not_complete():
    assert_expected_inline(
        message(shard(1, 2, is_complete=False), shard(2, 2)),
        """\
shard-1.json: Ctrl-C stopped this run before its end
  do         run custom-autograd check my_ops --shard 1/2 --json FILE, with the other options of the run""",
    )


def test_a_whole_run_that_was_stopped_is_not_complete():
    stopped = replace(WHOLE, run=replace(RUN, is_complete=False))

    assert "report.json: Ctrl-C stopped this run before its end" in message(Part("report.json", stopped))


@each(
    ("changes", "words", "expected", "found"),
    [
        ({"targets": ("others",)}, "targets", "('my_ops',)", "('others',)"),
        ({"checks": ("fake",)}, "checks", "2, with gradcheck", "1"),
        ({"device": "cuda"}, "devices", "'cpu'", "'cuda'"),
        ({"dtype": "float64"}, "dtypes", "None", "'float64'"),
        ({"seed": 7}, "seeds", "0", "7"),
        ({"torch": "2.14.0"}, "versions of torch", "'2.13.0'", "'2.14.0'"),
        ({"custom_autograd": "0.2"}, "versions of custom_autograd", "'0.1'", "'0.2'"),
    ],
)
def test_a_shard_of_a_run_with_other_conditions_is_refused(changes, words, expected, found):
    assert message(shard(1, 2), shard(2, 2, **changes)).splitlines() == [
        f"shard-2.json: it is a shard of another run than shard-1.json: the {words} differ",
        f"  expected   {expected}",
        f"  found      {found}",
        "  do         give the shards of one run",
    ]


def test_a_shard_of_another_number_of_shards_is_refused():
    assert_expected_inline(
        message(shard(1, 2), shard(2, 3)),
        """\
shard-2.json: it is a shard of another run than shard-1.json: the numbers of shards differ
  expected   2
  found      3
  do         give the shards of one run""",
    )


def test_a_shard_of_a_run_with_other_ops_is_refused():
    other = shard(2, 2)
    added = next(name for name in ("ns::x", "ns::y", "ns::z") if Shard(1, 2).holds(name))
    run = replace(other.report.run, ops=(*OPS, added))

    text = message(shard(1, 2), replace(other, report=replace(other.report, run=run)))
    assert "the ops differ" in text
    assert "expected   6" in text
    assert f"found      7, with {added}" in text


def test_an_op_without_results_is_missing():
    part = shard(1, 2)
    gone = part.ops()[0]
    results = tuple(result for result in part.report.results if result.op != gone)

    text = message(replace(part, report=replace(part.report, results=results)), shard(2, 2))
    assert f"shard-1.json: it has no results of '{gone}'" in text


def test_an_op_of_another_shard_is_refused():
    part, other = shard(1, 2), shard(2, 2)
    doubled = replace(part.report, results=(*part.report.results, *other.report.results))

    text = message(replace(part, report=doubled), other)
    problem, advice = text.splitlines()
    assert f"shard-1.json: it has results of '{other.ops()[0]}', which is not in shard 1/2" == problem
    assert (
        "  do         run custom-autograd check my_ops --shard 1/2 --json FILE, with the other options of the run"
        == advice
    )


# ---------------------------------------------------------------------------------------- reports without shards


def part(file, *ops, run=None):
    return Part(file, Report(tuple(Result(op, "fake", "small", "passed") for op in ops), {}, run))


def test_reports_of_different_ops_follow_each_other():
    merged = merge([part("b.json", "ns::b"), part("a.json", "ns::a", "ns::c")])

    assert ["ns::b", "ns::a", "ns::c"] == [result.op for result in merged.results]
    assert merged.run is None


def test_one_report_stays_as_it_is():
    assert WHOLE == merge([Part("report.json", WHOLE)])


def test_an_op_in_two_reports_is_refused():
    assert_expected_inline(
        message(part("a.json", "ns::a", "ns::b"), part("b.json", "ns::b")),
        """\
b.json: it has results of 'ns::b', and so has a.json
  do         give reports of different ops, or the shards of one run""",
    )


def test_a_shard_and_a_whole_report_are_refused():
    assert_expected_inline(
        message(part("a.json", "ns::a"), shard(1, 1)),
        """\
a.json: it is not a shard, and shard-1.json is shard 1/1
  do         give the shards of one run, and no other report""",
    )
