"""custom-autograd migrate: what it rewrites, what it leaves and why, and that old and new code are compared."""

# ruff: noqa: E501 - a line of output is as long as it is

import textwrap
from pathlib import Path

import pytest
import torch
from expecttest import assert_expected_inline
from tables import each

from custom_autograd.cli.main import main

pytest.importorskip("libcst", reason="libcst is not installed")

from custom_autograd.adoption.module_rewriting import RecordedFunction, rewrite
from custom_autograd.adoption.recording import record

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
# adds in place
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
# adds in place


# on the CPU
plus_op = custom_op("ns::plus_", plus_, schema="(Tensor(a!) x, Tensor y) -> ()", mutates_args=("x",), device_types="cpu")
plus_op.register_fake(lambda x, y: None)
""",
    )


def test_definitions_by_the_functions_of_torch_library_become_ops():
    after, places = rewritten(
        """\
import torch

torch.library.define("ns::plus", "(Tensor x) -> Tensor")
torch.library.define("ns::both", "(Tensor x) -> Tensor")
torch.library.define("ns::tagged", "(Tensor x) -> Tensor", tags=torch.Tag.pt2_compliant_tag)


@torch.library.impl("ns::plus", "default")
def plus(x):
    return x + 1


torch.library.impl("ns::plus", "cuda", lambda x: x + 1)
torch.library.impl("ns::both", ("cpu", "cuda"), lambda x: x + 1)
""",
        head="",
    )

    assert places == [
        "ns::plus: converted",
        'ns::both: a kernel is registered for the dispatch key ("cpu", "cuda")',
        "ns::tagged: it is defined with other arguments than a name and a schema in quotes",
    ]
    assert_expected_inline(
        after,
        """\
import torch
from custom_autograd import custom_op
torch.library.define("ns::both", "(Tensor x) -> Tensor")
torch.library.define("ns::tagged", "(Tensor x) -> Tensor", tags=torch.Tag.pt2_compliant_tag)



def plus(x):
    return x + 1


plus_op = custom_op("ns::plus", plus, schema="(Tensor x) -> Tensor")
plus_op.register_fake(plus)


plus_op.register_kernel("cuda", lambda x: x + 1)
torch.library.impl("ns::both", ("cpu", "cuda"), lambda x: x + 1)
""",
    )


def test_functions_that_are_decorated_as_kernels_become_kernels_of_a_declared_op():
    after, places = rewritten(
        """\
import torch

lib = torch.library.Library("ns", "DEF")
# adds one
lib.define("plus(Tensor x) -> Tensor")


@torch.library.impl(lib, "plus", "CPU")
def plus_cpu(x):
    return x + 1


@torch.library.impl(lib, "plus", "Meta")
def plus_meta(x):
    return torch.empty_like(x)
""",
        head="",
    )

    assert places == ["ns::plus: converted"]
    assert_expected_inline(
        after,
        """\
import torch
from custom_autograd import custom_op

lib = torch.library.Library("ns", "DEF")


# adds one
def plus_cpu(x):
    return x + 1


plus = custom_op("ns::plus", plus_cpu, schema="(Tensor x) -> Tensor", device_types="cpu")


def plus_meta(x):
    return torch.empty_like(x)


plus.register_fake(plus_meta)
""",
    )


HELPER = """\
import torch

lib = torch.library.Library("ns", "FRAGMENT")


def direct_register_custom_op(op_name, op_func, mutates_args, fake_impl=None, target_lib=None):
    ...


def add(x: torch.Tensor) -> torch.Tensor:
    return x + 1


direct_register_custom_op(%s)
"""


def test_a_helper_that_registers_ops_becomes_a_declaration():
    given = 'op_name="add", op_func=add, mutates_args=[], fake_impl=torch.empty_like'
    after, places = rewritten(HELPER % given, head="")

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
NO_TYPE = "'k' has no annotation, and {}: record a call with --record"
REASONS = {
    NO_TYPE.format("its type is not known"): ("ctx, x, k", "return x * k", "return grad, None"),
    NO_TYPE.format("is Tensor and float"): ("ctx, x, k=1.0", "return x * k", "return grad, grad"),
    NO_TYPE.format("is a whole number"): ("ctx, x, k=1", "return f(x, k)", "return grad, None"),
    "'k' has no annotation, and forward checks its type with isinstance()": (
        "ctx, x, k=1.0",
        "return x * (k if isinstance(k, Tensor) else 1)",
        "return grad, None",
    ),
    "'k' has the type 'Callable'": ("ctx, x, k: Callable", "return k(x)", "return grad, None"),
    "forward takes *args": ("ctx, *xs", "return xs[0] * 1", "return grad"),
    "forward writes to its parameter 'x'": ("ctx, x: Tensor", "return x.add_(1)", "return grad"),
    "it saves y.z, which may be an argument or an output": (
        "ctx, x: Tensor",
        "y = f(x)\n        ctx.save_for_backward(y.z)\n        return y.w",
        "return grad",
    ),
    "ctx.sizes is computed in forward": (
        "ctx, x: Tensor",
        "sizes = list(x.shape)\n        sizes[0] = 1\n        ctx.sizes = sizes\n        return x * 1",
        "return grad.expand(ctx.sizes)",
    ),
    "ctx.sizes is computed in forward ": (
        "ctx, x: Tensor",
        "sizes = list(x.shape)\n        same = sizes\n        same[0] = 1\n        ctx.sizes = sizes\n        return x * 1",
        "return grad.expand(ctx.sizes)",
    ),
    "ctx.state is torch.get_rng_state(), which may be another value in backward": (
        "ctx, x: Tensor",
        "ctx.state = torch.get_rng_state()\n        return x * 1",
        "return grad * len(ctx.state)",
    ),
    "backward writes to ctx": ("ctx, x: Tensor", "ctx.n = 1; return x * 1", "ctx.n = 2; return grad * ctx.n"),
    "backward uses 'scale' of its module, and forward has another 'scale'": (
        "ctx, x: Tensor, scale: float",
        "return x * scale",
        "return scale(grad), None",
    ),
    "it calls ctx.mark_dirty()": ("ctx, x: Tensor", "ctx.mark_dirty(x); return x", "return grad"),
    "ctx.m holds the tensor 'x' or depends on its data": (
        "ctx, x: Tensor",
        "ctx.m = x.max()\n        return x * 1",
        "return grad",
    ),
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
    "it saves 'x' after a block of forward assigns to it": (
        "ctx, x: Tensor",
        "if x.ndim:\n            x = x.contiguous()\n        ctx.save_for_backward(x)\n        return x * 1",
        "return grad",
    ),
}


@each("reason", REASONS)
def test_what_is_not_mechanical_stays_and_has_a_reason(reason):
    parameters, body, gradient = REASONS[reason]
    body, gradient = (
        "\n        ".join(map(str.strip, text.split(";"))) if ";" in text else text for text in (body, gradient)
    )
    source = FORWARD.format(parameters=parameters, body=body, gradient=gradient)

    assert (source, [f"F: {reason.strip()}"]) == rewritten(source)


@each("given", ["op_name=NAME, op_func=add", 'op_name="add"', 'op_name="add", op_func=add, layouts=None'])
def test_a_helper_with_other_arguments_stays(given):
    source = HELPER % given
    reason = "it is called with other arguments than a name in quotes and a function"

    assert (source, [f"direct_register_custom_op: {reason}"]) == rewritten(source, head="")


TYPES = {
    "a default": ("k=0.5", "return x * k", "", "float"),
    "a whole number that is only calculated with": ("k=2", "ctx.k = k; return x * k", "", "float"),
    "a dimension": ("dim=-1", "return x.sum(dim)", "", "int"),
    "a flag": ("flip=False", "return x.flip(0) if flip else x * 1", "", "bool"),
    "a tensor that is saved": ("y", "ctx.save_for_backward(y); return x * y", "", "Tensor"),
    "an optional tensor": ("y=None", "ctx.save_for_backward(y); return x * 1", "", "Tensor | None"),
    "a docstring": ("k", '"""Args: of forward.\n\n        k (float): factor\n        """; return x * k', "", "float"),
    "an annotation at a call": ("k", "return x * k", "def use(x, k: float):\n    return F.apply(x, k)", "float"),
    "a default at a call": ("k", "return x * k", "def use(x, k=2):\n    return F.apply(x, k)", "float"),
    "a matrix product": ("y", "return x @ y", "", "Tensor"),
}


@each("evidence", TYPES)
def test_source_tells_the_types_of_parameters_without_annotations(evidence):
    parameter, body, use, annotation = TYPES[evidence]
    body = "\n        ".join(part.strip() for part in body.split(";"))
    source = FORWARD.format(parameters=f"ctx, x, {parameter}", body=body, gradient="return grad, None")

    after, _ = rewritten(f"{source}\n\n{use}\n")

    assert f"{parameter.partition('=')[0]}: {annotation}" in after


VALUES = {
    "a view that is saved is made again": (
        "x, y",
        "x = x[:, None].contiguous()\n        ctx.save_for_backward(x, y)\n        return x * y",
        "x, y = ctx.saved_tensors\n        return (grad * y).sum(1), (grad * x).sum((0, 1))",
    ),
    "a variable is saved before forward assigns to it again": (
        "x, y",
        "r = x * y\n        ctx.save_for_backward(x, y, r)\n        r = r + 1\n        return r",
        "x, y, r = ctx.saved_tensors\n        return grad * y + 0 * r, (grad * x).sum(0) + r.sum(0)",
    ),
    "an expression is saved": (
        "x, y",
        "ctx.save_for_backward(2 * y, x.detach())\n        return x * y",
        "y, x = ctx.saved_tensors\n        return grad * y / 2, (grad * x).sum(0)",
    ),
    "a parameter is returned": ("x, y", "ctx.y = y\n        return x", "return 2 * grad, 0 * ctx.y"),
    "backward has variables of the same names": (
        "x, y",
        "ctx.save_for_backward(x, y)\n        return x * y",
        "a, b = ctx.saved_tensors\n        y, x = a, b\n        grad_x = grad * x\n        output = grad_x"
        "\n        return output, (grad * y).sum(0)",
    ),
    "a saved tensor is unpacked in a block": (
        "x, y",
        "ctx.save_for_backward(x, y)\n        return x * y",
        "if ctx.needs_input_grad[0]:\n            y, x = ctx.saved_tensors\n        y = y * 1"
        "\n        return grad * x, (grad * y).sum(0)",
    ),
    "gradients are written as sums of tuples": (
        "x, y",
        "ctx.save_for_backward(x, y)\n        return x * y",
        "x, y = ctx.saved_tensors\n        return (grad * y,) + (None,) * 1",
    ),
}


@each("case", VALUES)
def test_rewritten_code_returns_the_same_values_and_gradients(case):
    parameters, body, gradient = VALUES[case]
    source = HEAD + FORWARD.format(parameters=f"ctx, {parameters}", body=body, gradient=gradient)
    (module,) = rewrite({Path("m.py"): source}, f"values_{list(VALUES).index(case)}", {})
    assert [place.reason for place in module.places] == [""]
    found = []
    for text, name in ((source, "F"), (module.after, "f")):
        code: dict = {}
        exec(text, code)
        call = code[name].apply if name == "F" else code[name]
        x, y = torch.linspace(-1, 2, 6).view(2, 3).requires_grad_(), torch.linspace(1, 3, 3).requires_grad_()
        output = call(x, y)
        found.append((output, *torch.autograd.grad(output.square().sum(), (x, y), allow_unused=True)))

    torch.testing.assert_close(found[1], found[0])


def test_a_class_that_others_name_keeps_its_name_and_apply():
    plain = SWISH.partition("\n\nswish =")[0]
    after, places = rewritten(f'__all__ = ["SwishFunction"]\n\n\n{plain}\n\ny = SwishFunction.apply(1, 2.0)\n')

    assert places == ["SwishFunction: converted"]
    assert_expected_inline(
        after.partition("(1 - s))}")[2],
        """\



class SwishFunction:
    \"\"\"Calls the op, for code that calls `apply`.\"\"\"

    apply = staticmethod(swish)


y = SwishFunction.apply(1, 2.0)
""",
    )


def test_a_class_within_a_class_becomes_an_op_in_front_of_it():
    inner = textwrap.indent(
        FORWARD.format(parameters="ctx, x", body="return 2 * x", gradient="return 2 * grad"), "    "
    )
    after, places = rewritten(f"class Layer:\n{inner}\n    def use(self, x):\n        return self.F.apply(x)\n")

    assert places == ["Layer.F: converted"]
    assert_expected_inline(
        after,
        """\
import torch
from torch import Tensor
from torch.autograd import Function
from custom_autograd import custom_op


@custom_op("ns::f")
def f(x: Tensor) -> Tensor:
    return 2 * x


@f.register_backward
def _(grad):
    return 2 * grad


class Layer:
    class F:
        \"\"\"Calls the op, for code that calls `apply`.\"\"\"

        apply = staticmethod(f)

    def use(self, x):
        return self.F.apply(x)
""",
    )


def test_ops_of_one_package_have_different_names():
    source = HEAD + FORWARD.format(parameters="ctx, x", body="return 2 * x", gradient="return 2 * grad")
    names = {"a.py": "GateFn", "b.py": "GateFunction"}
    sources = {Path(file): source.replace("class F", f"class {name}") for file, name in names.items()}

    found = rewrite(sources, "ns", {})

    assert [place.op for one in found for place in one.places] == ["gate", "gate_b"]


def test_classes_that_must_stay():
    base = FORWARD.format(parameters="ctx, x", body="return 2 * x", gradient="return 2 * grad")
    _, places = rewritten(f"{base}\n\nclass G(F):\n    pass\n\n\nrun(F)\n")

    assert places == ["F: the class is used other than through apply: its name as a value", "G: it inherits from 'F'"]


def test_other_files_import_the_op_and_keep_classes_of_their_own():
    nested = "def make():\n    class SwishFunction:\n        apply = 1\n    return SwishFunction.apply\n"
    sources = {
        "swishes.py": HEAD + SWISH.partition("\n\nswish =")[0],
        "uses.py": "from .swishes import SwishFunction\n\ny = SwishFunction.apply(x, 2.0)\n",
        "own.py": nested,
    }
    found = rewrite({Path(name): text for name, text in sources.items()}, "ns", {})

    assert [one.after for one in found[1:]] == ["from .swishes import swish\n\ny = swish(x, 2.0)\n", nested]


def test_an_op_has_no_name_that_another_file_has():
    sources = {
        "swishes.py": HEAD + SWISH,
        "uses.py": "from .swishes import SwishFunction\n\n\ndef swish(x):\n    return SwishFunction.apply(x, 2.0)\n",
    }
    found = rewrite({Path(name): text for name, text in sources.items()}, "ns", {})

    assert found[0].after.endswith("\n\n\nswish = swish_op\n")
    assert found[1].after == "from .swishes import swish_op\n\n\ndef swish(x):\n    return swish_op(x, 2.0)\n"


def test_source_without_declarations_is_not_changed():
    assert rewritten("x = 1  # nothing here\n") == ("x = 1  # nothing here\n", [])


def written(folder, name, text):
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


@pytest.mark.slow
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
swishes.py:25: Unused: not converted: 'beta' has no annotation, and its type is not known: record a call with --record
1 converted, 1 not: 'beta' has no annotation, and its type is not known: record a call with --record
1 of 1 recorded agree by value, forward and gradient
""",
    )


TESTS = """\
import torch
from swishes import SwishFunction


@torch.library.custom_op("migrated::scaled", mutates_args=())
def scaled(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    return scale * x


def test_swish():
    print("this is not part of the change")
    for size in (5, 3):
        SwishFunction.apply(torch.ones(size), 2.0)
    assert scaled(torch.ones(2), scale=0.5).sum() == 2  # fails, and is recorded
"""


@pytest.mark.slow
def test_calls_of_tests_are_recorded_with_keyword_arguments(tmp_path):
    written(tmp_path, "swishes.py", HEAD + SWISH)
    tests = written(tmp_path, "test_swishes.py", TESTS)

    recorded = record(tmp_path, ["swishes"], tests)

    samples = {name: [str(one.sample) for one in results] for name, results in recorded.results.items()}
    assert {
        "migrated::scaled": ["Sample(float32[2], scale=0.5)"],
        "SwishFunction": ["Sample(float32[5], 2.0)", "Sample(float32[3], 2.0)"],
    } == samples
    assert {"x": "Tensor", "beta": "float"} == recorded.functions["SwishFunction"].types


@pytest.mark.slow
def test_a_script_that_fails_ends_the_run(tmp_path, capsys):
    module = written(tmp_path, "swishes.py", HEAD + SWISH)
    script = written(tmp_path, "script.py", "print(1)\n1 / 0")

    assert main(["migrate", str(module), "--record", str(script)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert_expected_inline(
        captured.err.replace(str(tmp_path), "FOLDER"),
        """\
custom-autograd: --record FOLDER/script.py: it raises ZeroDivisionError: division by zero
  do         correct it, and run it again
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
