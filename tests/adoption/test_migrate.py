"""custom-autograd migrate: what it rewrites, what it leaves and why, and that old and new code are compared."""

# ruff: noqa: E501 - a line of output is as long as it is

import textwrap
from pathlib import Path

import pytest
from expecttest import assert_expected_inline
from tables import each

from custom_autograd.cli.main import main

pytest.importorskip("libcst", reason="libcst is not installed")

from custom_autograd.adoption.module_rewriting import RecordedFunction, rewrite

HEAD = "import torch\nfrom torch import Tensor\nfrom torch.autograd import Function\n\n\n"

SWISH = '''\
class SwishFunction(Function):
    """x * sigmoid(beta * x)."""

    @staticmethod
    def forward(ctx, x: Tensor, beta: float):
        # the gate
        s = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, s)  # both are read
        ctx.shape = x.shape
        ctx.beta = beta
        return x * s

    @staticmethod
    def backward(ctx, g):
        x, gate = ctx.saved_tensors
        g = g.reshape(ctx.shape)  # it may be expanded
        return g * (gate + ctx.beta * x * gate * (1 - gate)), None


swish = SwishFunction.apply
'''


def rewritten(source, head=HEAD, **recorded):
    (module,) = rewrite({Path("m.py"): head + source}, "ns", recorded)
    return module.after.removeprefix(HEAD), [f"{place.name}: {place.reason or 'converted'}" for place in module.places]


def test_a_function_becomes_an_op_and_comments_stay():
    after, places = rewritten(SWISH)

    assert places == ["SwishFunction: converted"]
    assert_expected_inline(
        after,
        """\
import torch
from torch import Tensor
from torch.autograd import Function
from custom_autograd import custom_op


@custom_op("ns::swish", outputs=("output", "s"), hidden=("s",))
def swish(x: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    \"\"\"x * sigmoid(beta * x).\"\"\"
    # the gate
    s = torch.sigmoid(beta * x)
    # both are read
    return x * s, s


@swish.register_backward
def _(grad, x, beta, s, meta):
    grad = grad.reshape(meta.x.shape)  # it may be expanded
    return {"x": grad * (s + beta * x * s * (1 - s))}
""",
    )


def test_an_op_of_torch_library_changes_its_import():
    after, _ = rewritten(
        """\
import torch
from torch.library import Library, custom_op as op_of


@torch.library.custom_op("ns::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@op_of("ns::thrice", mutates_args=())
def thrice(x: torch.Tensor) -> torch.Tensor:
    return 3 * x
""",
        head="",
    )

    assert_expected_inline(
        after,
        """\
import torch
from torch.library import Library
from custom_autograd import custom_op, custom_op as op_of


@custom_op("ns::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@op_of("ns::thrice", mutates_args=())
def thrice(x: torch.Tensor) -> torch.Tensor:
    return 3 * x
""",
    )


def test_definitions_and_kernels_of_a_library_become_ops():
    after, places = rewritten(
        """\
import torch

lib = torch.library.Library("ns", "DEF")
lib.define("plus_(Tensor(a!) x, Tensor y) -> ()")
lib.define("native(Tensor x) -> Tensor")


def plus_(x, y):
    x.add_(y)


# on the CPU
lib.impl("plus_", plus_, "CPU")
lib.impl("plus_", lambda x, y: None, "Meta")
""",
        head="",
    )

    assert places == ["ns::plus_: converted", "ns::native: no kernel is registered with impl() at the top of this file"]
    assert_expected_inline(
        after,
        """\
import torch
from custom_autograd import custom_op

lib = torch.library.Library("ns", "DEF")
lib.define("native(Tensor x) -> Tensor")


def plus_(x, y):
    x.add_(y)


# on the CPU
plus_op = custom_op("ns::plus_", plus_, schema="(Tensor(a!) x, Tensor y) -> ()", mutates_args=("x",), device_types="cpu")
plus_op.register_fake(lambda x, y: None)
""",
    )


def test_a_helper_that_registers_ops_becomes_a_declaration():
    after, places = rewritten(
        """\
import torch

lib = torch.library.Library("ns", "FRAGMENT")


def direct_register_custom_op(op_name, op_func, mutates_args, fake_impl=None, target_lib=None):
    ...


def add(x: torch.Tensor) -> torch.Tensor:
    return x + 1


direct_register_custom_op(op_name="add", op_func=add, mutates_args=[], fake_impl=torch.empty_like)
""",
        head="",
    )

    assert places == ["direct_register_custom_op: converted"]
    assert after.endswith(
        'add_op = custom_op("ns::add", add, mutates_args=[])\nadd_op.register_fake(torch.empty_like)\n'
    )


def test_a_class_that_from_function_can_wrap_stays_with_an_op_beside_it():
    source = """\
class Scale(Function):
    @staticmethod
    @torch.no_grad()
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def use(x):
    return Scale.apply(x)
"""
    after, places = rewritten(source, Scale=RecordedFunction(samples="[(torch.rand((3,)),)]"))

    assert places == ["Scale: converted"]
    assert 'scale = from_function(Scale, "ns::scale", samples=[(torch.rand((3,)),)])' in after
    assert "return scale(x)" in after
    assert rewritten(source)[1] == ["Scale: forward is decorated with @torch.no_grad()"]


FORWARD = """\
class F(Function):
    @staticmethod
    def forward({parameters}):
        {body}

    @staticmethod
    def backward(ctx, grad):
        {gradient}
"""
REASONS = {
    "'x' has no annotation: record a call with --record": ("ctx, x", "return x * 1", "return grad"),
    "forward takes *args": ("ctx, *xs", "return xs[0] * 1", "return grad"),
    "it returns its parameter 'x'": ("ctx, x: Tensor", "return x", "return grad"),
    "it returns its parameter 'x', or a view of it": ("ctx, x: Tensor", "return x.view_as(x)", "return grad"),
    "it calls ctx.mark_dirty()": ("ctx, x: Tensor", "ctx.mark_dirty(x); return x", "return grad"),
    "ctx.m holds the tensor 'x' or depends on its data": (
        "ctx, x: Tensor",
        "ctx.m = x.max()\n        return x * 1",
        "return grad",
    ),
    "it saves an expression": ("ctx, x: Tensor", "ctx.save_for_backward(x * 2)\n        return x * 1", "return grad"),
    "forward returns in several places": (
        "ctx, x: Tensor",
        "if x.ndim:\n            return x * 1\n        return x * 2",
        "return grad",
    ),
    "backward returns gradients that are not written one by one": (
        "ctx, x: Tensor, y: Tensor",
        "return x * y",
        "return tuple(grad for _ in range(2))",
    ),
    "backward uses ctx.saved_tensors": ("ctx, x: Tensor", "return x * 1", "return grad * len(ctx.saved_tensors)"),
    "it saves 'x' after forward assigns to it": (
        "ctx, x: Tensor",
        "x = x.contiguous()\n        ctx.save_for_backward(x)\n        return x * 1",
        "return grad",
    ),
}


@each("reason", REASONS)
def test_what_is_not_mechanical_stays_and_has_a_reason(reason):
    parameters, body, gradient = REASONS[reason]
    body = "\n        ".join(part.strip() for part in body.split(";")) if ";" in body else body
    source = FORWARD.format(parameters=parameters, body=body, gradient=gradient)

    assert (source, [f"F: {reason}"]) == rewritten(source)


def test_other_files_import_the_op_and_keep_classes_of_their_own():
    nested = "def make():\n    class SwishFunction:\n        apply = 1\n    return SwishFunction.apply\n"
    sources = {
        "swishes.py": HEAD + SWISH.partition("\n\nswish =")[0],
        "uses.py": "from .swishes import SwishFunction\n\ny = SwishFunction.apply(x, 2.0)\n",
        "own.py": nested,
    }
    found = rewrite({Path(name): text for name, text in sources.items()}, "ns", {})

    assert [one.after for one in found[1:]] == ["from .swishes import swish\n\ny = swish(x, 2.0)\n", nested]


def test_source_without_declarations_is_not_changed():
    assert rewritten("x = 1  # nothing here\n") == ("x = 1  # nothing here\n", [])


def written(folder, name, text):
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def test_recorded_calls_tell_types_and_old_and_new_are_compared(tmp_path, capsys):
    plain = SWISH.replace("x: Tensor, beta: float", "x, beta").partition("\n\nswish =")[0]
    module = written(tmp_path, "swishes.py", f"{HEAD}{plain}\n\n{plain.replace('SwishFunction', 'Unused')}")
    script = written(
        tmp_path,
        "script.py",
        """\
        import swishes
        import torch

        x = torch.linspace(-1, 1, 3, dtype=torch.float64, requires_grad=True)
        swishes.SwishFunction.apply(x, 2.0).sum().backward()
        """,
    )

    code = main(["migrate", str(module), "--record", str(script), "--write"])

    assert "def swish(x: Tensor, beta: float) -> tuple[Tensor, Tensor]:" in module.read_text()
    assert code == 1
    assert_expected_inline(
        capsys.readouterr().out,
        """\
swishes.py:6: SwishFunction: converted, agrees
swishes.py:25: Unused: not converted: 'x' has no annotation: record a call with --record
1 converted, 1 not: 'x' has no annotation: record a call with --record
1 of 1 recorded agree by value, forward and gradient
""",
    )


def test_the_change_is_printed_and_nothing_is_written(tmp_path, capsys):
    path = written(tmp_path, "swishes.py", HEAD + SWISH)

    assert main(["migrate", str(path)]) == 0
    assert path.read_text() == HEAD + SWISH
    assert "-class SwishFunction(Function):" in (out := capsys.readouterr().out)
    assert out.endswith("swishes.py:6: SwishFunction: converted\n1 converted, 0 not\n")


def test_a_path_that_does_not_exist(tmp_path, capsys):
    assert main(["migrate", str(tmp_path / "none.py")]) == 2
    assert "No such file or directory" in capsys.readouterr().err
