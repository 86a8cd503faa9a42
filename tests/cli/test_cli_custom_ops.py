"""list, show and check on ops declared with `custom_op`: every capability, the source, progress and seconds."""

import re
import threading
from pathlib import Path

import pytest
import torch
from expecttest import assert_expected_inline
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.cli import main, terminal
from custom_autograd.verification.report import Result

GALLERY = Path(__file__).parents[2] / "examples" / "gallery"


@custom_op("cli::square", reference=True)
def square(x: Tensor) -> Tensor:
    return x * x


@square.register_samples
def _(make):
    yield Sample(make(2, 3)).named("small")


@pytest.fixture
def target():
    return f"{__file__}:square"


def test_list_names_every_capability_by_where_it_comes_from(target, capsys):
    code = main(["list", target])

    assert 0 == code
    assert_expected_inline(
        re.sub(r":\d+", ":LINE", capsys.readouterr().out),
        """\
cli::square, test_cli_custom_ops.py:LINE
  kernels     default
  derived     fake, backward, jvp, vmap, sharding, checkpointing, flops, compile cache, inplace, out
  none        shapes, autocast, torch_dispatch, effect, inline
""",
    )


def test_lines_of_list_have_at_most_100_columns(capsys):
    assert 0 == main(["list", str(GALLERY)])
    assert 100 >= max(map(len, capsys.readouterr().out.splitlines()))


def test_show_prints_schema_kernels_coverage_and_samples_on_a_page(target, capsys):
    code = main(["show", target])

    out = capsys.readouterr().out
    assert 0 == code
    assert square.source.splitlines()[0].strip() not in out
    assert 60 >= len(out.splitlines())


def test_show_with_source_prints_the_generated_source_as_well(target, capsys):
    code = main(["show", target, "--source"])

    out = capsys.readouterr().out
    assert 0 == code
    assert "cli::square(Tensor x) -> Tensor" in out
    assert "default          test_cli_custom_ops.py:" in out
    assert "Sample(float32[2, 3]).named('small')" in out
    assert "  calls\n    call             " in out
    assert all(f"\n    {name}" in out for name in square.capabilities())
    assert square.source.splitlines()[0].strip() in out


def test_durations_has_the_seconds_of_each_check(target, capsys):
    assert 0 == main(["check", target, "--checks", "schema,determinism", "-j", "0", "--durations"])

    table, dearest = (part.splitlines() for part in capsys.readouterr().out.split("\n\n")[-2:])
    assert ["op", "check", "seconds", "sample"] == dearest[0].split()
    assert ["check", "seconds"] == table[0].split()
    assert {"schema", "determinism"} == {line.split()[0] for line in table[2:]}
    assert all(float(line.split()[1]) >= 0 for line in table[2:])


def test_verbose_prints_the_table_of_checks(target, capsys):
    arguments = ["check", target, "--checks", "schema", "-j", "0"]
    main(arguments)
    short = capsys.readouterr().out
    main([*arguments, "-v"])

    assert_expected_inline(
        short,
        """\
cli::square: 1 passed
""",
    )
    assert_expected_inline(
        capsys.readouterr().out,
        """\
op           check   status  samples
-----------  ------  ------  --------
cli::square  schema  passed  1 passed

cli::square: 1 passed
""",
    )


def test_a_line_of_a_log_says_what_runs(monkeypatch, capsys):
    now = iter([100.0, 111.0, 122.5])
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(now))
    log = terminal.Log(8)
    log("ns::f", "schema", Result("ns::f", "schema", "sample 0", "passed"))
    log("ns::f", "fake", None)
    log.show()
    log.show()

    assert_expected_inline(
        capsys.readouterr().err,
        """\
checking: 1 of 8, 11 s, ns::f: fake
checking: 1 of 8, 22 s, ns::f: fake
""",
    )


WRONG = """
import torch
from torch import Tensor
from custom_autograd import Sample, custom_op

@custom_op("cli_findings::NAME", reference=True)
def wrong(x: Tensor) -> Tensor:
    return 2 * x

@wrong.register_kernel("cpu", name="other")
def _(x):
    return 3 * x

wrong.register_samples(lambda make: [Sample(make(3))])
"""


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_finding_is_named_as_it_comes(processes, tmp_path, monkeypatch, capsys):
    name = f"with_{processes}"
    (tmp_path / "wrong.py").write_text(WRONG.replace("NAME", name))
    monkeypatch.chdir(tmp_path)
    arguments = ["check", "wrong.py:wrong", "--checks", "reference,kernels", "-j", processes]
    assert 1 == main(arguments)
    first = f"failed: cli_findings::{name}, reference, on sample 0: (float32[3])"
    assert first == capsys.readouterr().err.splitlines()[0]

    accepted = f'[tool.custom_autograd.xfail."cli_findings::{name}"]\nreference = "known"\n'
    (tmp_path / "pyproject.toml").write_text(accepted)
    main(arguments)
    assert (
        f"failed: cli_findings::{name}, kernels, on sample 0: (float32[3])" in capsys.readouterr().err.splitlines()[:1]
    )


def test_a_log_has_lines_while_a_check_runs(monkeypatch):
    shown = threading.Event()
    monkeypatch.setattr(terminal, "SECONDS", 0.001)
    monkeypatch.setattr(terminal.Log, "show", lambda log: shown.set())
    with terminal.progress(8, is_quiet=False):
        assert shown.wait(60)


@pytest.mark.slow
def test_check_of_an_op_with_everything_ends_with_0(target, capsys):
    assert torch.get_default_dtype() == torch.float32
    assert 0 == main(["check", target, "--dtype", "float64"])
    assert "cli::square: " in capsys.readouterr().out.splitlines()[-1]
