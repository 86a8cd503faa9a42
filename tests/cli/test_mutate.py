"""custom-autograd mutate: its table, its exit codes, and the mutants that reach a test suite in another process."""

import json
import os
import sys

import pytest

from custom_autograd.cli import main, mutate

OPS = """
import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("{namespace}::square", reference=True)
def square(x: Tensor) -> Tensor:
    return x * x


@square.register_backward
def _(grad, x):
    return 2 * grad * x


@square.register_samples
def _(make):
    yield Sample(make(3))


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x, name):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad * ctx.saved_tensors[0] ** 2, None
"""

TESTS = """
import torch


def test_gradient():
    from mutate_ops import Cube, square

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    square(x).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]
    Cube.apply(x, "").sum().backward()
    assert x.grad.tolist() == [5.0, 16.0]


def test_nothing():
    pass
"""


@pytest.fixture
def folder(imports_of, monkeypatch):
    namespace = f"mutate_{abs(hash(str(imports_of)))}"
    (imports_of / "mutate_ops.py").write_text(OPS.format(namespace=namespace))
    (imports_of / "test_mutate_ops.py").write_text(TESTS)
    (imports_of / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(imports_of)]))
    return imports_of


def test_everything_noticed_ends_with_0(folder, capsys):
    code = main(["mutate", "mutate_ops.py:square", "--checks", "gradcheck", "--operators", "sign,factor"])

    out = capsys.readouterr().out
    assert 0 == code, out
    assert "square  backward        sign      gradcheck" in out
    assert "3 noticed" in out


def test_survivor_ends_with_1_and_is_explained(folder, capsys):
    code = main(["mutate", "mutate_ops.py:square", "--checks", "schema", "--operators", "sign"])

    out = capsys.readouterr().out
    assert 1 == code, out
    assert "SURVIVED" in out
    assert "no test fails where the rule returns the negative" in out


def test_json_has_every_mutant(folder, capsys):
    main(["mutate", "mutate_ops.py:square", "--checks", "gradcheck", "--operators", "sign", "--json", "found.json"])
    document = json.loads((folder / "found.json").read_text())

    assert document["ok"]
    assert [("backward", "sign", "noticed")] == [(r["rule"], r["operator"], r["status"]) for r in document["mutants"]]


def test_unknown_operator_ends_with_2(folder, capsys):
    assert 2 == main(["mutate", "mutate_ops.py:square", "--operators", "sing", "--checks", "schema"])
    assert "did you mean 'sign'?" in capsys.readouterr().err


def test_function_without_samples_needs_a_test_suite(folder, capsys):
    assert 2 == main(["mutate", "mutate_ops.py:Cube", "--checks", "schema"])
    assert "there is nothing to check it on" in capsys.readouterr().err


@pytest.mark.slow
def test_test_suite_notices_what_it_tests(folder, capsys):
    code = main(["mutate", "mutate_ops.py:square", "--operators", "sign,abs", "--pytest", "test_mutate_ops.py"])

    out = capsys.readouterr().out
    assert 1 == code, out
    assert "backward  sign      test_mutate_ops.py::test_gradient" in out
    assert "backward  abs       SURVIVED" in out


@pytest.mark.slow
def test_test_suite_shows_what_changes_nothing_where_there_are_no_samples(folder, capsys):
    main(["mutate", "mutate_ops.py:Cube", "--operators", "drop", "--pytest", "test_mutate_ops.py"])

    out = capsys.readouterr().out
    assert "Cube  backward  drop[x]   test_mutate_ops.py::test_gradient" in out
    assert "no change: Cube, backward: drop[name]" in out


@pytest.mark.slow
def test_test_suite_that_fails_as_it_is_ends_with_2(folder, capsys):
    (folder / "test_red.py").write_text("def test_red():\n    assert False\n")
    code = main(["mutate", "mutate_ops.py:square", "--pytest", "test_red.py"])

    assert 2 == code
    assert "it ends with 1 before anything is changed" in capsys.readouterr().err


@pytest.mark.slow
def test_test_suite_that_never_declares_the_op_ends_with_2(folder, capsys):
    arguments = ["--operators", "sign", "--pytest", "test_mutate_ops.py::test_nothing"]
    code = main(["mutate", "mutate_ops.py:square", *arguments])

    assert 2 == code
    assert "no test declares" in capsys.readouterr().err


def test_command_that_is_not_there_ends_with_2(folder, capsys):
    assert 2 == main(["mutate", "mutate_ops.py:square", "--tests", "no-such-command"])
    assert "no-such-command: there is no such command" in capsys.readouterr().err


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_is_written_over_the_line_before_in_a_terminal(is_terminal, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    mutate._show_progress("1 of 2")

    assert ("\r\x1b[2K1 of 2" if is_terminal else "") == capsys.readouterr().err
