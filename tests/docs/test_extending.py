"""Following a page of docs/extending/ in a copy of the package gives what the page promises."""

import os
import re
import shutil
from pathlib import Path

import pytest

from python_server import run_python

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "custom_autograd"
CODE = re.compile(r"^```python\n(.*?)^```\n", re.M | re.S)
DIFF = re.compile(r"^```diff\n # (?P<file>.*?)\n(?P<lines>.*?)^```\n", re.M | re.S)
IMPORT = re.compile(r"^from custom_autograd\.\w+ import .*\n", re.M)

LANGUAGE_IMPORTS = """\
from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.kernels.lazy_kernel import LazyKernel as KernelSource
from custom_autograd.kernels.numpy import numpy_kernel
"""
CHECK_IMPORTS = """\
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.base import PASSED, Check, Finding, NothingToCheckError, failed
from custom_autograd.verification.harness.sweeps import copy
from custom_autograd.verification.harness.targets import Target, call_on
"""
USE_LANGUAGE = """\
import torch
from custom_autograd.kernels import ExpressionKernel

print(ExpressionKernel("x, y -> x + sqrt(y)")(torch.tensor(1.0), torch.tensor(4.0)).item())
"""
USE_CHECK = """\
from custom_autograd.verification.checks import CHECKS

print([check.name for check in CHECKS if check.code == "F99"])
"""
USE_CAPABILITY = """\
import torch
from torch.profiler import ProfilerActivity, profile
from custom_autograd import custom_op


@custom_op("extending::cube")
def cube(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() ** 3)


def ranges(function):
    loss = function(torch.ones(3, requires_grad=True)).sum()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        loss.backward()
    return [event.key for event in profiled.key_averages() if "extending::cube." in event.key]


cube.register_fake(torch.empty_like)
cube.register_backward(lambda grad, x: 3 * grad * x * x)
for _ in range(3):  # the first call goes through the dispatcher, the others are direct
    assert ["extending::cube.backward"] == ranges(cube)
assert [] == ranges(torch.compile(cube, fullgraph=True, backend="aot_eager"))
x = torch.ones(3, requires_grad=True)
with torch._dynamo.config.patch(compiled_autograd=True):
    torch.compile(lambda: cube(x).sum().backward(), backend="aot_eager")()
assert [3.0, 3.0, 3.0] == x.grad.tolist()
assert torch.autograd.gradgradcheck(cube, torch.ones(3, dtype=torch.float64, requires_grad=True))
print(cube.capabilities()["profiler"])
"""
USE_TYPE = """\
import torch
from custom_autograd import custom_op
from tests.ops import TABLE


def total(x: torch.Tensor, table: bytes = b"\\x01", more: list[bytes | None] | None = None) -> torch.Tensor:
    return x * (sum(table) + sum(map(sum, filter(None, more or []))))


op = custom_op("extending::total", total, reference=True)
x = torch.ones(2, requires_grad=True)
for given in ((), (b"",), (b"\\x02\\xff",), (b"a", [b"b", None])) * 2:
    expected = total(x, *given)
    for call in (op, torch.compile(op, fullgraph=True, backend="aot_eager")):
        found = call(x, *given)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), x), torch.autograd.grad(total(x, *given).sum(), x))
print(op.schema)

row = TABLE["bytes"]
inputs = row.inputs(requires_grad=True)
for found, expected in zip(row.op(*inputs), row.reference(*inputs), strict=True):
    torch.testing.assert_close(found, expected)
assert torch.autograd.gradcheck(row.op, inputs) and torch.autograd.gradgradcheck(row.op, inputs)
"""
SLOW = pytest.mark.slow  # as the other pages, in a process of its own
TYPE_SCHEMA = "(Tensor x, str? table=None, str?[]? more=None) -> Tensor\n"


@pytest.mark.parametrize(
    ("page", "file", "imports", "use", "expected"),
    [
        ("add-a-kernel-language", "kernels/expression.py", LANGUAGE_IMPORTS, USE_LANGUAGE, "3.0\n"),
        pytest.param(
            "add-a-check", "verification/checks/finite.py", CHECK_IMPORTS, USE_CHECK, "['finite']\n", marks=SLOW
        ),
        pytest.param(
            "add-a-capability",
            "capabilities/profiler.py",
            None,
            USE_CAPABILITY,
            "derived: extending::cube.backward\n",
            marks=SLOW,
        ),
        pytest.param("add-an-argument-type", None, None, USE_TYPE, TYPE_SCHEMA, marks=SLOW),
    ],
    ids=["kernel language", "check", "capability", "argument type"],
)
def test_a_page_can_be_followed(tmp_path, page, file, imports, use, expected):
    text = (ROOT / "docs" / "extending" / f"{page}.md").read_text(encoding="utf-8")
    shutil.copytree(PACKAGE, tmp_path / "custom_autograd", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "ops.py", tmp_path / "tests")
    if file is not None:
        assert f"`custom_autograd/{file}`" in text
        (tmp_path / "custom_autograd" / file).write_text(with_imports(CODE.findall(text)[0], imports), encoding="utf-8")
    for change in DIFF.finditer(text):
        insert(tmp_path / change["file"], change["lines"].splitlines())

    assert expected == run(tmp_path, use)


def with_imports(code: str, imports: str | None) -> str:
    """Replace imports from `custom_autograd.extend`, which is above the file, by those from its own layers, if any."""
    if imports is None:
        return code
    head, *_, tail = IMPORT.split(code)
    return head + imports + tail


def insert(file: Path, changes: list[str]) -> None:
    """Insert each line that a diff adds after the context line above it."""
    lines = file.read_text(encoding="utf-8").splitlines()
    position = 0
    for change in changes:
        if change.startswith("+"):
            lines.insert(position, change[1:])
        else:
            position = lines.index(change[1:], position)
        position += 1
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def run(folder: Path, code: str) -> str:
    """Return what a Python program prints with the package in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    finished = run_python("-c", code, cwd=folder, env=environment)
    assert 0 == finished.returncode, finished.stderr
    return finished.stdout
