"""custom-autograd check --shard I/N and custom-autograd report: the shards together are the run without shards."""

import json
import sys

import pytest
from expecttest import assert_expected_inline

from custom_autograd.cli import main

OPS = """
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.targets import Target, TargetArgument


def samples(make):
    yield Sample(make(3)).named("three")


def broken_samples(make):
    raise ValueError("no luck")


def right(x):
    return x * 2


def wrong(x):
    return x.detach() * 2


def interrupted(x):
    raise KeyboardInterrupt


def target(name, function, samples=samples):
    return Target(f"shards::{name}", function, function, (TargetArgument("x"),), samples=samples)


ONE, TWO, THREE, FOUR = (target(name, right) for name in ("one", "two", "three", "four"))
WRONG, SILENT, STOPPED = target("wrong", wrong), target("silent", right, None), target("stopped", interrupted)
BROKEN = target("broken", right, broken_samples)
"""

NAMES = ("ONE", "SILENT", "TWO", "WRONG", "THREE", "FOUR")
TARGETS = [f"shard_ops.py:{name}" for name in NAMES]
CHECKS = ["--checks", "schema,gradcheck"]


@pytest.fixture
def folder(imports_of):
    (imports_of / "shard_ops.py").write_text(OPS)
    return imports_of


def check_shards(count, *arguments, targets=TARGETS, processes="0"):
    """The exit code of each shard, and the names of the files."""
    files = [f"shard-{number}.json" for number in range(1, count + 1)]
    codes = [
        main(
            ["check", *targets, *CHECKS, "-j", processes, "--shard", f"{number}/{count}", "--json", file, *arguments],
        )
        for number, file in enumerate(files, start=1)
    ]
    return codes, files


def rows(file):
    """Everything that a report says of results, but the time that they took."""
    results = json.loads(file.read_text())["results"]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in results]


def run_in(file):
    """What a report says of its run."""
    return json.loads(file.read_text())["run"]


@pytest.mark.parametrize("count", [1, 2, 3, 20])
def test_the_report_of_all_shards_is_that_of_the_run_without_shards(folder, capsys, count):
    whole = main(["check", *TARGETS, *CHECKS, "-j", "0", "--json", "whole.json"])
    printed = capsys.readouterr().out
    codes, files = check_shards(count)
    capsys.readouterr()
    merged = main(["report", *reversed(files), "--json", "merged.json"])

    assert 1 == whole == merged == max(codes)
    assert printed == capsys.readouterr().out
    assert rows(folder / "whole.json") == rows(folder / "merged.json")
    assert run_in(folder / "whole.json") == run_in(folder / "merged.json")


@pytest.mark.slow
def test_shards_with_several_processes_find_the_same(folder, capsys):
    _, files = check_shards(2, processes="2")
    main(["report", *files, "--json", "several.json"])
    _, files = check_shards(2)
    main(["report", *files, "--json", "one.json"])

    assert rows(folder / "one.json") == rows(folder / "several.json")


def test_each_op_is_in_the_report_of_one_shard_even_without_samples(folder, capsys):
    _, files = check_shards(3)
    ops = [op for file in files for op in dict.fromkeys(row["op"] for row in rows(folder / file))]

    assert sorted(f"shards::{name.lower()}" for name in NAMES) == sorted(ops)


def test_a_shard_without_ops_is_a_report_that_says_so(folder, capsys):
    codes, files = check_shards(2, "--html", "shard.html", targets=TARGETS[:1])
    empty = next(file for file in files if not rows(folder / file))
    number = files.index(empty) + 1

    assert [0, 0] == codes
    assert f"nothing was checked\nshard {number}/2: none of 1 ops\n" in capsys.readouterr().out
    assert json.loads((folder / empty).read_text())["ok"]
    assert 0 == main(["report", *files, "-q"])


def test_samples_are_made_for_the_ops_of_the_shard_only(folder, capsys):
    codes, _ = check_shards(2, targets=["shard_ops.py:ONE", "shard_ops.py:BROKEN"])

    assert [0, 2] == sorted(codes)
    assert 1 == capsys.readouterr().err.count("shards::broken: its samples cannot be made")


def test_ops_that_all_have_no_samples_are_an_error_of_every_shard(folder, capsys):
    codes, _ = check_shards(2, targets=["shard_ops.py:SILENT"])

    assert [2, 2] == codes


@pytest.mark.parametrize("text", ["0/3", "4/3", "a/b", "1/0", "-1/3", "3", "1/2/3", ""])
def test_what_is_not_a_shard_is_refused(capsys, text):
    with pytest.raises(SystemExit) as caught:
        main(["check", "shard_ops.py", f"--shard={text}"])

    assert 2 == caught.value.code
    sentence = f"argument --shard: a shard is I/N, such as 3/16, with I from 1 to N, not '{text}'"
    assert sentence in capsys.readouterr().err


def test_the_document_says_what_was_run(folder, capsys):
    arguments = ["--device", "cpu", "--dtype", "torch.float64", "--seed", "7", "--shard", "2/3", "--json", "r.json"]
    main(["check", *TARGETS[:2], "--checks", "quick", *arguments])
    run = run_in(folder / "r.json")

    assert {"number": 2, "count": 3} == run["shard"]
    assert ["shards::one", "shards::silent"] == run["ops"]
    assert (TARGETS[:2], "cpu", "float64", 7, True) == tuple(
        run[key] for key in ("targets", "device", "dtype", "seed", "is_complete")
    )
    assert "schema" in run["checks"]
    assert "quick" not in run["checks"]


def test_accepted_failures_are_those_of_the_run_without_shards(folder, capsys):
    (folder / "pyproject.toml").write_text(
        '[tool.custom_autograd.xfail]\n"shards::wrong" = { gradcheck = "a known mistake" }\n'
    )
    codes, files = check_shards(2)

    assert [0, 0] == codes
    assert 0 == main(["report", *files])
    assert "accepted\n  shards::wrong: gradcheck, on three: a known mistake" in capsys.readouterr().out


WHOLE_MODULE = """
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("whole_shards::first", reference=True)
def first(x: Tensor) -> Tensor:
    return x * 2


@custom_op("whole_shards::second", reference=True)
def second(x: Tensor) -> Tensor:
    return x * 3


@first.register_samples
@second.register_samples
def samples(make):
    yield Sample(make(3))
"""


def test_every_shard_of_a_module_knows_the_accepted_ops_of_the_others(folder, capsys):
    (folder / "whole_ops.py").write_text(WHOLE_MODULE)
    table = "\n".join(f'"whole_shards::{name}" = {{ vmap = "not yet" }}' for name in ("first", "second"))
    (folder / "pyproject.toml").write_text(f"[tool.custom_autograd.xfail]\n{table}\n")
    codes, files = check_shards(3, targets=["whole_ops"])

    assert ([0, 0, 0], 0) == (codes, main(["report", *files, "-q"]))


# ------------------------------------------------------------------------------------------------------- report


def test_report_writes_every_document(folder, capsys):
    _, files = check_shards(2)
    code = main(["report", *files, "-q", "--html", "r.html", "--markdown", "r.md", "--junit", "r.xml"])

    assert 1 == code
    assert all("shards::wrong" in (folder / f"r.{suffix}").read_text() for suffix in ("html", "md", "xml"))


def test_report_of_reports_without_shards_has_the_ops_of_all(folder, capsys):
    for name in ("ONE", "TWO"):
        main(["check", f"shard_ops.py:{name}", *CHECKS, "-j", "0", "--json", f"{name}.json"])
    code = main(["report", "TWO.json", "ONE.json", "--json", "both.json"])

    assert 0 == code
    assert ["shards::two", "shards::one"] == list(dict.fromkeys(row["op"] for row in rows(folder / "both.json")))


def test_report_without_a_shard_ends_with_2_and_writes_nothing(folder, capsys):
    check_shards(3, targets=TARGETS[:1])
    capsys.readouterr()
    code = main(["report", "shard-1.json", "shard-3.json", "--html", "r.html"])

    assert 2 == code
    assert_expected_inline(
        capsys.readouterr().err,
        """\
custom-autograd: shard-1.json: it is one of 3 shards, of which these are missing: 2/3
  do         run custom-autograd check shard_ops.py:ONE --shard 2/3 --json FILE, with the other options of the run
""",
    )
    assert not (folder / "r.html").exists()


def test_a_shard_that_ctrl_c_stopped_is_not_complete(folder, capsys):
    codes, files = check_shards(2, targets=["shard_ops.py:ONE", "shard_ops.py:STOPPED"])
    capsys.readouterr()
    code = main(["report", *files])

    assert 130 in codes
    assert 2 == code
    assert f"{files[codes.index(130)]}: Ctrl-C stopped this run before its end" in capsys.readouterr().err


def test_the_document_of_an_earlier_run_does_not_replace_that_of_a_run_that_is_killed(folder, capsys):
    check_shards(1)
    (folder / "shard_ops.py").write_text("raise SystemExit(9)")  # ends before it can write a document
    del sys.modules["shard_ops"]
    code = main(["check", *TARGETS, *CHECKS, "--shard", "1/1", "--json", "shard-1.json"])
    capsys.readouterr()

    assert (2, 2) == (code, main(["report", "shard-1.json"]))
    assert "shard-1.json: the file is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "r.json: the file is empty\n  do         wait for the run that writes it, or run it again"),
        (
            '{"format": 1, "ok": tr',
            "r.json: this is not JSON, or its end is missing: Expecting value: line 1",
        ),
        ("<html>", "r.json: this is not JSON, or its end is missing: Expecting value: line 1"),
        ("[]", "r.json: this is not a report of format 1: its format is None"),
        ('{"format": 2}', "r.json: this is not a report of format 1: its format is 2"),
        ('{"format": 1, "mutants": []}', "r.json: this is not a report of format 1: it has no results"),
        ('{"format": 1, "results": [1], "sources": {}}', "r.json: this is not a report of format 1: "),
        ('{"format": 1, "results": [], "sources": {}, "run": {}}', "format 1: KeyError: 'targets'"),
        (
            '{"format": 1, "results": [{"status": "PASSED", "measures": {}}], "sources": {}}',
            "r.json: this is not a report of format 1: there is no status 'PASSED'",
        ),
    ],
    ids=["empty", "cut off", "HTML", "a list", "later", "mutants", "numbers", "a run of nothing", "a status"],
)
def test_a_file_that_is_not_a_report_is_refused(folder, capsys, text, sentence):
    (folder / "r.json").write_text(text)

    assert 2 == main(["report", "r.json"])
    assert sentence in capsys.readouterr().err


def test_a_file_that_is_not_text_is_refused(folder, capsys):
    (folder / "r.json").write_bytes(b"\xff\xfe")

    assert 2 == main(["report", "r.json"])
    said = capsys.readouterr().err
    assert (
        "custom-autograd: r.json: this is not text in UTF-8\n  do         give a file that check --json has written\n"
        == said
    )


def test_a_file_that_is_absent_is_refused(folder, capsys):
    assert 2 == main(["report", "shard-*.json"])
    assert "custom-autograd: shard-*.json: No such file or directory\n" == capsys.readouterr().err
