"""Declaring an op again, or registering a rule again, replaces it as a Python function is replaced."""

import importlib
import re
import sys
import types

import pytest
import torch

from custom_autograd import DeclarationError, RegistrationError, custom_op
from python_server import run_python

X = torch.tensor([1.0, 2.0], dtype=torch.float64)

CELL = """
import torch
from torch import Tensor
from custom_autograd import custom_op

@custom_op("redefined::{name}")
def scale(x: Tensor) -> Tensor:
    return x * {factor}

@scale.register_backward
def _(grad):
    return grad * {factor}
"""
RULE = """
@scale.register_backward
def _(grad):
    return grad * {factor}
"""


@pytest.fixture(autouse=True)
def _notebook(monkeypatch):
    """The module of the cells can be imported, as that of a notebook can: Dynamo of torch 2.11 does so."""
    monkeypatch.setitem(sys.modules, "notebook", types.ModuleType("notebook"))


def run(text, names, cell=0):
    """Runs text as a notebook runs a cell: each has a file name of its own, and all have one module."""
    exec(compile(text, f"<cell {cell}>", "exec"), names)
    vars(sys.modules["notebook"]).update(names)
    return names["scale"]


def gradient(op):
    return torch.func.grad(lambda x: op(x).sum())(X)


@pytest.mark.parametrize("cells", [(0, 0), (0, 1)], ids=["run again", "changed"])
def test_a_cell_that_is_run_again_replaces_its_op(cells):
    names = {"__name__": "notebook"}
    old = run(CELL.format(name=f"cell_{cells[1]}", factor=2), names, cells[0])
    new = run(CELL.format(name=f"cell_{cells[1]}", factor=3), names, cells[1])

    torch.testing.assert_close((old(X), new(X)), (2 * X, 3 * X))
    torch.testing.assert_close((gradient(old), gradient(new)), (torch.full_like(X, 2.0), torch.full_like(X, 3.0)))
    torch.testing.assert_close(getattr(torch.ops.redefined, f"cell_{cells[1]}")(X), 3 * X)


@pytest.mark.parametrize("cell", [1, 2], ids=["run again", "changed"])
def test_a_cell_with_a_rule_that_is_run_again_replaces_the_rule(cell):
    names = {"__name__": "notebook"}
    op = run(CELL.format(name=f"rule_{cell}", factor=2).partition("@scale")[0], names)
    run(RULE.format(factor=2), names, 1)
    gradient(op)
    run(RULE.format(factor=5), names, cell)

    torch.testing.assert_close(gradient(op), torch.full_like(X, 5.0))


def test_a_module_that_is_reloaded_replaces_its_op(imports_of):
    file = imports_of / "reloaded_ops.py"
    file.write_text(CELL.format(name="reloaded", factor=2))
    sys.path.insert(0, str(imports_of))
    module = importlib.import_module("reloaded_ops")
    old = module.scale
    file.write_text("# a line more\n" + CELL.format(name="reloaded", factor=33))
    importlib.reload(module)

    torch.testing.assert_close((old(X), module.scale(X)), (2 * X, 33 * X))
    torch.testing.assert_close(gradient(module.scale), torch.full_like(X, 33.0))


def test_another_module_is_refused_with_both_places():
    run(CELL.format(name="other", factor=2), {"__name__": "first"}, 1)
    with pytest.raises(DeclarationError, match="the op is already declared") as caught:
        run(CELL.format(name="other", factor=2), {"__name__": "second"}, 2)

    assert "one at <cell 1>:6, another at <cell 2>:6" in str(caught.value)


def test_a_file_that_is_imported_under_two_names_is_told_so(tmp_path):
    (tmp_path / "ops.py").write_text(CELL.format(name="twice", factor=2) + "\nimport ops\n")
    found = run_python("ops.py", cwd=tmp_path)

    assert 1 == found.returncode
    assert "the op is declared twice, because its file is imported under two names" in found.stderr
    assert re.search(r"found +ops\.py:6 as '__main__', 'ops'", found.stderr)


def test_two_rules_without_a_name_in_one_file_are_two_rules():
    names = {"__name__": "notebook"}
    op = run(CELL.format(name="two", factor=2), names)
    with pytest.raises(RegistrationError, match="the backward rule is already registered"):
        run(
            "\n\n\n"
            + CELL.format(name="unused", factor=2).replace("redefined::unused", "redefined::two_")
            + RULE.format(factor=3),
            names,
        )

    torch.testing.assert_close(gradient(op), torch.full_like(X, 2.0))


def adding(number):
    def kernel(x):
        return x + number

    return kernel


def test_two_kernels_of_a_factory_are_two_kernels():
    op = custom_op("redefined::factory", lambda x: x * 1, schema="(Tensor x) -> Tensor")
    op.register_kernel("cpu", adding(X))
    with pytest.raises(RegistrationError, match="already has a kernel"):
        op.register_kernel("cpu", adding(2 * X))


def kernel(x):
    return x + 1


def test_the_same_function_may_be_registered_twice():
    op = custom_op("redefined::same", lambda x: x * 1, schema="(Tensor x) -> Tensor")
    op.register_kernel("cpu", kernel)
    op.register_kernel("cpu", kernel)
    op.register_fake(torch.empty_like)
    op.register_fake(torch.empty_like)

    torch.testing.assert_close(op(X), X + 1)


def test_the_same_autocast_policy_may_be_registered_twice_and_another_may_not():
    op = custom_op("redefined::policy", lambda x: x * 1, schema="(Tensor x) -> Tensor")
    op.register_autocast("cpu", torch.bfloat16)
    op.register_autocast("cpu", torch.bfloat16)
    with pytest.raises(RegistrationError, match="already registered"):
        op.register_autocast("cpu", torch.float32)


def test_compiled_code_calls_the_new_op(fresh_compiler):
    names = {"__name__": "notebook"}
    run(CELL.format(name="compiled", factor=2) + "\nscale.register_fake(torch.empty_like)", names)
    exec("def call(x): return scale(x)", names)
    compiled = torch.compile(names["call"], backend="aot_eager", fullgraph=True)
    compiled(X)
    run(CELL.format(name="compiled", factor=3) + "\nscale.register_fake(torch.empty_like)", names)

    torch.testing.assert_close(compiled(X), 3 * X)
