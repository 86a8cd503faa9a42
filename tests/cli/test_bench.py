"""custom-autograd bench: what it prints, what it writes, and with which exit code it ends. No figure is asserted."""

import json

import pytest

from custom_autograd.cli import main

OPS = """
import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("bench_cli::{name}", reference=True)
def op(x: Tensor) -> Tensor:
    return x * 2


@op.register_samples
def _(make):
    yield Sample(make(3))


@custom_op("bench_cli::{name}_", mutates_args=("x",))
def op_(x: Tensor) -> None:
    x.mul_(2)


op_.register_samples(lambda make: [Sample(make(3))])


def other(x):
    return x + x
"""


@pytest.fixture
def file(tmp_path, request):
    path = tmp_path / "benched.py"
    path.write_text(OPS.format(name=request.node.name.replace("[", "_").replace("]", "")))
    return path


def table(capsys):
    return [line.split("  ") for line in capsys.readouterr().out.splitlines()]


def test_it_prints_a_line_per_sample_callable_and_mode(file, capsys):
    assert 0 == main(["bench", f"{file}:op", "--seconds", "0"])

    lines = [[cell.strip() for cell in line if cell.strip()] for line in table(capsys)]
    assert ["op", "sample", "callable", "mode", "minimum, µs", "median, µs", "op / callable"] == lines[0]
    assert {
        (name, mode) for name in ("op", "reference") for mode in ("no grad", "forward", "forward + backward")
    } == {(line[2], line[3]) for line in lines[1:]}


def test_it_compares_with_a_callable(file, capsys):
    assert 0 == main(["bench", f"{file}:op", "--seconds", "0", "--no-backward", "--compare", f"{file}:other"])

    assert ["op", "reference", "other"] == [line[2].strip() for line in map(cells, table(capsys)[1:])]


def cells(line):
    return [cell for cell in line if cell.strip()]


def test_an_op_that_writes_is_measured_without_gradients(file, capsys):
    assert 0 == main(["bench", f"{file}:op_", "--seconds", "0"])

    assert ["no grad"] == [cells(line)[3].strip() for line in table(capsys)[1:]]


def test_it_writes_json_and_a_plot(file, tmp_path):
    found, plot = tmp_path / "found.json", tmp_path / "plot.png"
    assert 0 == main(["bench", f"{file}:op", "--seconds", "0", "--json", str(found), "--plot", str(plot)])

    written = json.loads(found.read_text())
    assert {"machine", "rows"} == set(written)
    assert all(0 < row["minimum"] <= row["median"] for row in written["rows"])
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "nowhere"),
        (["{file}", "--compare", "{file}"], "--compare takes a callable"),
        (["{file}:op", "--device", "nope"], "there is no device type of that name"),
    ],
)
def test_what_cannot_be_measured_is_said(file, arguments, message, capsys):
    assert 2 == main(["bench", *(text.format(file=file) for text in arguments)])

    assert message in capsys.readouterr().err
