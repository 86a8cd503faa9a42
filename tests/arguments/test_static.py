"""Functions and classes as arguments: what can be imported is passed by its name."""

# ruff: noqa: E501 - a message is as long as it is

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from arguments.functions import Cubes, apply, cube, local, square
from expecttest import assert_expected_inline
from messages.shown import message, together
from tables import each
from torch import Tensor
from torch.nn.functional import gelu, relu
from torch.testing import assert_close
from ways import Calls, all_of, every_eager_way, every_graph

from custom_autograd import KernelError, custom_op

X = torch.tensor([1.0, 2.0, -3.0], dtype=torch.float64)
FUNCTIONS = {"function": square, "class": Cubes, "of torch": torch.relu, "of torch.nn": relu, "builtin": gelu}
ROWS = each("function", FUNCTIONS.values(), ids=FUNCTIONS)


@custom_op("statics::scaled", static="by")
def scaled(x: Tensor, by: Callable[[Tensor], Tensor] | None = square, scale: float = 2.0) -> Tensor:
    return x * scale if by is None else by(x) * scale


@scaled.register_fake
def _(x, by, scale):
    assert by is None or callable(by)
    return torch.empty_like(x)


@scaled.register_backward
def _(grad, x, by, scale):
    if by is None:
        return {"x": grad * scale}
    return {"x": torch.func.vjp(by, x)[1](grad)[0] * scale}


@custom_op("statics::by_schema", static="by", schema="(Tensor x, str by) -> Tensor")
def by_schema(x, by):
    return by(x)


def calls_of(function):
    """Two ops that call a function, and what they compute."""
    ops = all_of([lambda x: apply(x, function, 2), lambda x: scaled(x, by=function)])
    return ops, all_of([lambda x: function(function(x)), lambda x: 2 * function(x)])


@ROWS
@every_eager_way
def test_values_and_derivatives_in_every_way(function, way, plainly):
    ops, expected = calls_of(function)

    assert_close(way(ops, X), plainly(expected, X))


@every_graph
def test_values_and_gradients_in_graphs(way, plainly):
    ops, expected = map(all_of, zip(*map(calls_of, FUNCTIONS.values()), strict=True))

    assert_close(way(ops, X), plainly(expected, X))


@ROWS
def test_gradcheck(function):
    x = X.clone().requires_grad_()

    assert torch.autograd.gradcheck(lambda x: apply(x, function), x, check_forward_ad=True)
    assert torch.autograd.gradcheck(lambda x: scaled(x, function), x)


def test_each_function_is_compiled_once(fresh_compiler):
    compiled = torch.compile(apply, fullgraph=True, backend="eager")
    assert_close(compiled(X, square), square(X))
    assert_close(compiled(X, cube), cube(X))

    with torch.compiler.set_stance("fail_on_recompile"):
        assert_close(compiled(X, square), square(X))
        assert_close(compiled(X, cube), cube(X))
        with pytest.raises(Exception, match="recompil"):
            compiled(X, relu)


def test_default_and_none():
    assert_close(scaled(X), 2 * square(X))
    assert_close(scaled(X, None), 2 * X)
    assert_close(torch.ops.statics.scaled(X), 2 * square(X))


def test_a_schema_of_the_author():
    assert_close(by_schema(X, cube), cube(X))


def test_the_name_travels():
    assert_close(torch.ops.statics.apply(X, "arguments.functions:cube"), cube(X))
    assert '(Tensor x, str? by="arguments.functions:square", float scale=2.0) -> Tensor' == scaled.schema.text


PROGRAM = """
import sys
import torch
from arguments import functions
print(torch.export.load(sys.argv[1]).module()(torch.tensor([3.0])).item())
"""


@pytest.mark.slow
def test_an_exported_program_runs_in_another_process(tmp_path):
    path = str(tmp_path / "program.pt2")
    torch.export.save(torch.export.export(Calls(lambda x: apply(x, square)), (torch.ones(1),)), path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    finished = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, check=True, env=environment)

    assert b"9.0" == finished.stdout.strip()


# ----------------------------------------------------------------------------------------------------------- messages


def shown(call):
    return re.sub("functions.py:[0-9]+", "FILE.py:LINE", message(call))


def test_what_is_refused():
    assert_expected_inline(
        together(
            shown(lambda: apply(X, lambda x: x)),
            shown(lambda: apply(X, "arguments.functions:square")),
            shown(lambda: torch.ops.statics.apply(X, "arguments.functions:sqare")),
            shown(lambda: torch.ops.statics.apply(X, "arguments.nowhere:square")),
        ),
        """\
KernelError: statics::apply
  declared   FILE.py:LINE
argument 'function': expected a function or class that can be imported, found a lambda: define it at the top level of a module, and pass what varies as arguments of the op
  do         pass torch.relu, for example
argument 'function': expected a function or a class, found 'arguments.functions:square'
  do         pass torch.relu, for example
the static argument 'function' names what cannot be found
  expected   'module:name' of a function or class in a module that is imported in this process
  found      'arguments.functions:sqare': its module has nothing of that name
  do         keep the name in arguments.functions
the static argument 'function' names what cannot be found
  expected   'module:name' of a function or class in a module that is imported in this process
  found      'arguments.nowhere:square': its module is not imported in this process
  do         import arguments.nowhere first, if you trust what holds the name: a text does not decide what is imported""",
    )


@each(
    "function, found",
    [
        (local(), "local.<locals>.inner, which is local to a function: define"),
        (functools.partial(square), "a functools.partial: define"),
        (Cubes.method.__get__(3), "the bound method Cubes.method: define"),
        (torch.nn.ReLU(), "ReLU(), which is not what its module has under that name: define"),
    ],
)
def test_what_cannot_be_imported(function, found):
    assert f"expected a function or class that can be imported, found {found} it at the top" in message(
        lambda: apply(X, function)
    )


def test_a_name_imports_nothing(imports_of):
    """Whoever can edit the text of an exported program would choose which code runs."""
    (imports_of / "not_imported.py").write_text("raise SystemExit('imported')")
    sys.path.insert(0, str(imports_of))

    with pytest.raises(KernelError, match="its module is not imported in this process"):
        torch.ops.statics.apply(X, "not_imported:f")
    assert "not_imported" not in sys.modules


def test_a_lambda_is_refused_under_compilation(fresh_compiler):
    compiled = torch.compile(lambda x, function: apply(x, function), fullgraph=True, backend="eager")

    with pytest.raises(Exception, match="argument 'function': expected a function or class that can be imported"):
        compiled(X, lambda x: x)
