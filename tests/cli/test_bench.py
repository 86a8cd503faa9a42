"""custom-autograd bench: what it prints, what it writes, and with which exit code it ends. No figure is asserted."""

import importlib.util
import json
import re

import expecttest
import pytest
import torch

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


@custom_op("bench_cli::{name}_one_way")
def one_way(x: Tensor) -> Tensor:
    return x * 2


one_way.register_samples(lambda make: [Sample(make(3))])


@custom_op("bench_cli::{name}_unsampled")
def unsampled(x: Tensor) -> Tensor:
    return x * 2


def other(x):
    return x + x


def unlucky(x):
    raise ValueError("no luck")
"""


@pytest.fixture
def file(imports_of, request):
    path = imports_of / "benched.py"
    path.write_text(OPS.format(name=re.sub(r"\W", "_", request.node.name)))
    return path


def table(capsys):
    return [line.split("  ") for line in capsys.readouterr().out.splitlines()]


def test_it_prints_a_line_per_sample_callable_and_mode(file, capsys):
    assert 0 == main(["bench", f"{file}:op", "--seconds", "0"])

    lines = [[cell.strip() for cell in line if cell.strip()] for line in table(capsys)]
    assert ["op", "sample", "callable", "mode", "minimum, µs", "median, µs", "op / callable", "kernel"] == lines[0]
    assert {(name, mode) for name in ("op", "reference") for mode in ("no grad", "forward", "forward + backward")} == {
        (line[2], line[3]) for line in lines[1:]
    }


def test_it_compares_with_a_callable(file, capsys):
    assert 0 == main(["bench", f"{file}:op", "--seconds", "0", "--no-backward", "--compare", f"{file}:other"])

    assert ["op", "reference", "other"] == [line[2].strip() for line in map(cells, table(capsys)[1:])]


def test_it_names_the_kernel_that_runs(file, tmp_path):
    main(["bench", f"{file}:op", "--seconds", "0", "--no-backward", "--out", str(tmp_path / "found.json")])

    assert ["default", None] == [row["kernel"] for row in rows_of(tmp_path / "found.json")]


def cells(line):
    return [cell for cell in line if cell.strip()]


def test_an_op_that_writes_is_measured_without_gradients(file, capsys):
    assert 0 == main(["bench", f"{file}:op_", "--seconds", "0"])

    assert ["no grad"] == [cells(line)[3].strip() for line in table(capsys)[1:]]


def test_it_writes_json_and_a_plot(file, tmp_path):
    found, plot = tmp_path / "found.json", tmp_path / "plot.png"
    assert 0 == main(["bench", f"{file}:op", "--seconds", "0", "--json", str(found), "--plot", str(plot)])

    written = json.loads(found.read_text())
    assert {"machine", "peaks", "rows", "not measured"} == set(written)
    assert all(0 < row["minimum"] <= row["median"] for row in written["rows"])
    assert plot.read_bytes().startswith(b"\x89PNG")


def rows_of(path):
    return json.loads(path.read_text())["rows"]


PRODUCT = """
import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("bench_cli::{name}", reference=True)
def op(x: Tensor) -> Tensor:
    return x @ x


op.register_samples(lambda make: [Sample(make(4, 4))])
"""


def test_it_tells_the_share_of_the_peak_where_flops_are_known(imports_of, request, capsys, tmp_path):
    path, found = imports_of / "product.py", tmp_path / "found.json"
    path.write_text(PRODUCT.format(name=request.node.name))
    assert 0 == main(["bench", f"{path}:op", "--seconds", "0", "--json", str(found)])

    *lines, peak = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("of peak")
    assert all(line.endswith("%") for line in lines[1:])
    assert re.fullmatch(r"peak: \S+ GFLOP/s on cpu, the best of 5 products of 1024 x 1024 float32 matrices", peak)
    op, reference = [128, 128, 128 + 128 + 256], [128, 128, 128 + 256]  # without a rule the op runs its reference again
    assert [*op, *reference] == [row["FLOPs"] for row in rows_of(found)]
    assert [peak] == [f"peak: {text}" for text in json.loads(found.read_text())["peaks"]]


def test_it_measures_no_peak_where_no_flops_are_known(file, tmp_path):
    main(["bench", f"{file}:op", "--seconds", "0", "--no-backward", "--out", str(tmp_path / "found.json")])

    assert [] == json.loads((tmp_path / "found.json").read_text())["peaks"]
    assert [(0, None)] * 2 == [(row["FLOPs"], row["of peak"]) for row in rows_of(tmp_path / "found.json")]


def test_out_is_json_by_another_name(file, tmp_path):
    main(["bench", f"{file}:op", "--seconds", "0", "--no-backward", "--out", str(tmp_path / "found.json")])

    assert ["op", "reference"] == [row["callable"] for row in rows_of(tmp_path / "found.json")]


def test_a_ratio_is_of_the_shortest_times(file, tmp_path):
    main(["bench", f"{file}:op", "--seconds", "0", "--no-backward", "--out", str(tmp_path / "found.json")])

    op, reference = rows_of(tmp_path / "found.json")
    assert 1.0 == op["op / callable"]
    assert reference["op / callable"] == pytest.approx(op["minimum"] / reference["minimum"], rel=0.01, abs=0.001)


def test_a_callable_of_the_name_op_does_not_take_the_place_of_the_op(file, tmp_path):
    compare = ["--compare", f"{file}:op", "--no-backward", "--out", str(tmp_path / "found.json")]
    main(["bench", f"{file}:op", "--seconds", "0", *compare])

    assert ["op", "reference", f"{file}:op"] == [row["callable"] for row in rows_of(tmp_path / "found.json")]


def test_an_op_without_a_backward_is_measured_as_far_as_it_goes(file, capsys):
    assert 0 == main(["bench", f"{file}:one_way", "--seconds", "0"])

    lines = capsys.readouterr().out.splitlines()
    assert ["no grad", "forward"] == [cells(line.split("  "))[3].strip() for line in lines[1:3]]
    assert lines[3].endswith("op, forward + backward: no backward is registered")


def test_a_callable_that_raises_is_a_finding_and_stops_nothing(file, capsys):
    code = main(["bench", f"{file}:op", "--seconds", "0", "--no-backward", "--compare", f"{file}:unlucky"])

    out = capsys.readouterr().out
    assert 1 == code
    assert ["op", "reference"] == [cells(line.split("  "))[2].strip() for line in out.splitlines()[1:3]]
    assert "unlucky, no grad: it raises ValueError: no luck" in out


def test_an_op_without_samples_is_named(file, capsys):
    assert 0 == main(["bench", f"{file}", "--seconds", "0", "--no-backward"])

    assert "_unsampled: no samples are registered (register_samples)" in capsys.readouterr().out


def test_the_number_of_threads_is_what_it_was(file):
    before = torch.get_num_threads()
    main(["bench", f"{file}:op", "--seconds", "0", "--no-backward", "--threads", str(before + 1)])

    assert before == torch.get_num_threads()


def test_a_plot_without_matplotlib_says_what_to_install(file, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert 2 == main(["bench", f"{file}:op", "--plot", "found.png"])

    expecttest.assert_expected_inline(
        capsys.readouterr().err,
        """\
custom-autograd: --plot needs matplotlib: pip install custom-autograd[plot]
""",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "nowhere"),
        (["{file}", "--compare", "{file}"], "--compare takes a callable"),
        (["{file}:op", "--device", "nope"], "there is no device type of that name"),
        (["{file}:unsampled"], "nothing was measured, because no samples are registered"),
        (["{file}:op", "--seconds", "-1"], "--seconds takes a finite number, 0 or more; -1.0 was given"),
        (["{file}:op", "--seconds", "inf"], "--seconds takes a finite number, 0 or more; inf was given"),
        (["{file}:op", "--threads", "0"], "--threads takes 1 or more; 0 was given"),
        (["{file}:op", "--plot", "found.nope"], "found.nope: --plot writes no such format"),
    ],
)
def test_what_cannot_be_measured_is_said(file, arguments, message, capsys):
    assert 2 == main(["bench", *(text.format(file=file) for text in arguments)])

    assert message in capsys.readouterr().err
