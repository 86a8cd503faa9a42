"""custom-autograd check PACKAGE --record: what a package defines is found, and recorded calls are its samples."""

import importlib
import json
import re

import pytest
import torch
from expecttest import assert_expected_inline

from custom_autograd.cli import main
from custom_autograd.core.errors import CheckError
from custom_autograd.testing import record_calls
from custom_autograd.verification.harness.op_files import load
from custom_autograd.verification.harness.packages import load_all

FUNCTIONS = """
import torch

from foreign import ops


class Scale(torch.autograd.Function):
    factor = 2.0

    @classmethod
    def forward(cls, ctx, x, times):
        ctx.times = times
        return cls.factor * times * x

    @classmethod
    def backward(cls, ctx, grad):
        return cls.factor * ctx.times * grad, None, None  # a surplus None is legal


class Wrong(Scale):
    @classmethod
    def backward(cls, ctx, grad):
        return grad, None


class Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, grad):
        return grad, grad  # the engine sums it to the shape of y, which is legal


class Outer:
    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        def backward(ctx, grad):
            return grad


class Applied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, function):
        return function(x)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad, None


class Unused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x


scale = Scale.apply  # kept before any call


def local(x):
    class Local(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 3 * x

        @staticmethod
        def backward(ctx, grad):
            return 4 * grad

    return Local.apply(x)
"""

OPS = """
import torch
from torch import Tensor

library = torch.library.Library("foreign", "DEF")
library.define("doubled(Tensor x) -> Tensor")
library.impl("doubled", lambda x: x * 2, "CompositeExplicitAutograd")
library.define("version() -> int")
torch.library.define("foreign::tripled", "(Tensor x) -> Tensor")
torch.library.impl("foreign::tripled", "default", lambda x: x * 3)


@torch.library.custom_op("foreign::halved", mutates_args=())
def halved(x: Tensor) -> Tensor:
    return x / 2


del halved
"""

FILES = {
    "__init__.py": "",
    "functions.py": FUNCTIONS,
    "ops.py": OPS,
    "broken.py": "import not_installed",
    "test_it.py": "raise RuntimeError('tests are not imported')",
}

SCRIPT = """
import torch
from foreign import functions

print("a line on stdout that is not part of the report")
for size in (9, 3, 5):
    x = torch.linspace(0.1, 0.9, size, requires_grad=True)
    functions.scale(x, 3)
    functions.Wrong.apply(x, 1)
    functions.Added.apply(torch.ones(2, size, requires_grad=True), x)
    functions.Outer.Rounded.apply(x)
    functions.Applied.apply(x, lambda x: 2 * x)
    functions.local(x)
    torch.ops.foreign.halved(x.detach())
try:
    functions.Scale.apply(x, "a")  # a call that raises is not recorded
except TypeError:
    pass
"""


@pytest.fixture
def package(imports_of, request):
    """A package under a name of its own: what it registers with the dispatcher stays there."""
    name = re.sub(r"\W", "_", f"foreign_{request.node.name}")
    folder = imports_of / name
    folder.mkdir()
    for file, text in FILES.items():
        (folder / file).write_text(text.replace("foreign", name))
    (imports_of / "script.py").write_text(SCRIPT.replace("foreign", name))
    return name


def test_submodules_are_imported_and_what_they_define_is_found(package):
    contents = load_all(package)

    names = [loaded.alone.replace(package, "foreign") for loaded in contents.found]
    assert [
        "foreign.ops:foreign::doubled",
        "foreign.ops:foreign::halved",
        "foreign:foreign::tripled",
        "foreign.functions:Scale",
        "foreign.functions:Added",
        "foreign.functions:Outer.Rounded",
        "foreign.functions:Applied",
        "foreign.functions:Unused",
        "foreign.functions:Wrong",
    ] == names
    assert [loaded.value for loaded in contents.found] == [load(loaded.alone)[0].value for loaded in contents.found]
    assert {f"{package}.broken": "ModuleNotFoundError: No module named 'not_installed'"} == contents.unimportable


def test_the_smallest_call_of_each_kind_is_kept_with_its_numbers(package):
    with record_calls(package) as calls:
        functions = importlib.import_module(f"{package}.functions")
        for size in (9, 3, 5):
            functions.scale(torch.ones(size), 3)
        functions.scale(torch.ones(2, requires_grad=True), 30)
        functions.Scale.apply(torch.ones(2**22 + 1), 4)

    kept = calls[functions.Scale]
    assert ["Sample(float32[3], 3)", "Sample(float32[2], 30)"] == [str(sample) for sample in kept]
    assert [("times",)] * 2 == [sample.kept for sample in kept]
    assert [False, True] == [sample.tensors()[0].requires_grad for sample in kept]
    assert [] == calls[functions.Added]


def test_calls_with_8_bit_floats_are_recorded(package):
    with record_calls(package) as calls:
        importlib.import_module(f"{package}.functions").Unused.apply(torch.ones(3).to(torch.float8_e5m2))

    assert ["Sample(float8_e5m2[3])"] == [str(sample) for samples in calls.values() for sample in samples]


@pytest.mark.slow
def test_recorded_calls_are_checked_and_what_has_none_is_named(package, imports_of, capsys):
    options = ["--record", "script.py", "--checks", "contract,gradcheck", "--surrogate", "Outer.*", "-q"]
    code = main(["check", package, *options, "--json", "report.json"])

    printed = capsys.readouterr().out
    results = json.loads((imports_of / "report.json").read_text())["results"]
    lines = [f"{row['op']}, {row['check']}: {row['status']}" for row in results]
    lines += [row["message"] for row in results if row["check"] == "all checks"]
    assert 1 == code
    assert "a line on stdout" not in printed
    assert f"from {package}.functions import Wrong" in printed
    assert_expected_inline(
        "\n".join(lines).replace(package, "foreign"),
        """\
foreign::halved, contract: skipped
foreign::halved, gradcheck: skipped
Scale, contract: passed
Scale, gradcheck: passed
Added, contract: passed
Added, gradcheck: passed
Outer.Rounded, contract: passed
Outer.Rounded, gradcheck: skipped
Wrong, contract: passed
Wrong, gradcheck: failed
foreign::doubled, all checks: skipped
foreign::tripled, all checks: skipped
Unused, all checks: skipped
foreign, all checks: skipped
foreign.functions.Applied, contract: passed
foreign.functions.Applied, gradcheck: passed
foreign.functions.local.<locals>.Local, contract: passed
foreign.functions.local.<locals>.Local, gradcheck: failed
no sample: call it in script.py, small and with plain tensors, or give samples in Python: check(op, [Sample(...)])
no sample: call it in script.py, small and with plain tensors, or give samples in Python: check(op, [Sample(...)])
no sample: call it in script.py, small and with plain tensors, or give samples in Python: check(op, [Sample(...)])
foreign.broken cannot be imported: ModuleNotFoundError: No module named 'not_installed'""",
    )


TESTS = """
import torch
from foreign.functions import Wrong


def test_wrong():
    assert Wrong.apply(torch.ones(2, requires_grad=True), 1).sum() == 4


def test_that_fails():
    assert Wrong.apply(torch.ones(2, 2), 1).sum() == 0
"""


@pytest.mark.slow
def test_tests_are_recorded_whether_they_pass_or_fail(package, imports_of, capsys):
    (imports_of / "test_foreign.py").write_text(TESTS.replace("foreign", package))

    code = main(
        ["check", f"{package}.functions:Wrong", "--record", "test_foreign.py", "--checks", "gradcheck", "-j", "0"]
    )

    assert 1 == code
    assert capsys.readouterr().out.startswith("1 op or Function, 1 with samples\nFAILED Wrong: gradcheck, on sample 0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("1 / 0", "it raises ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "it exits with 3"),
        ("import os; os._exit(4)", "its process ended by itself, with exit code 4"),
    ],
    ids=["raises", "exits", "ends"],
)
def test_a_script_that_fails_ends_the_run(package, imports_of, capsys, script, message):
    (imports_of / "script.py").write_text(script)

    assert 2 == main(["check", package, "--record", "script.py"])
    assert f"custom-autograd: --record script.py: {message}" in capsys.readouterr().err


def test_without_samples_and_without_recording_nothing_is_checked(package, capsys):
    assert 2 == main(["check", f"{package}.functions:Scale", f"{package}.functions:Wrong"])
    assert_expected_inline(
        capsys.readouterr().err,
        """\
custom-autograd: nothing was checked, because nothing has samples
  Scale, Wrong: record calls with --record SCRIPT, or give some in Python: check(op, [Sample(...)])
""",
    )


def test_surrogates_that_are_not_there_are_refused(package, capsys):
    assert 2 == main(["check", f"{package}.functions:Scale", "--surrogate", "Scales"])
    assert_expected_inline(
        capsys.readouterr().err,
        """\
custom-autograd: --surrogate Scales: there is no op or Function of that name
""",
    )


def test_package_that_defines_nothing_is_refused(imports_of):
    (imports_of / "nothing_here.py").write_text("import torch\n")

    with pytest.raises(CheckError, match="no ops and no Functions are defined there"):
        load_all("nothing_here")
