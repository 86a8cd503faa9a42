"""Following a page of docs/extending/ in a copy of the package gives what the page promises."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "custom_autograd"
CODE = re.compile(r"^```python\n(.*?)^```\n", re.M | re.S)
DIFF = re.compile(r"^```diff\n # (?P<file>.*?)\n(?P<lines>.*?)^```\n", re.M | re.S)
IMPORT = re.compile(r"^from custom_autograd\.\w+ import .*\n", re.M)

LANGUAGE_IMPORTS = """\
from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.kernels.lazy import LazyKernel as KernelSource
from custom_autograd.kernels.numpy import numpy_kernel
"""
CHECK_IMPORTS = """\
from custom_autograd.core.samples import Sample
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


@pytest.mark.parametrize(
    ("page", "file", "imports", "use", "expected"),
    [
        ("add-a-kernel-language", "kernels/expression.py", LANGUAGE_IMPORTS, USE_LANGUAGE, "3.0\n"),
        ("add-a-check", "verification/checks/finite.py", CHECK_IMPORTS, USE_CHECK, "['finite']\n"),
    ],
    ids=["kernel language", "check"],
)
def test_a_page_can_be_followed(tmp_path, page, file, imports, use, expected):
    text = (ROOT / "docs" / "extending" / f"{page}.md").read_text(encoding="utf-8")
    assert f"`custom_autograd/{file}`" in text
    shutil.copytree(PACKAGE, tmp_path / "custom_autograd", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "custom_autograd" / file).write_text(with_imports(CODE.findall(text)[0], imports), encoding="utf-8")
    for change in DIFF.finditer(text):
        insert(tmp_path / change["file"], change["lines"].splitlines())

    assert expected == run(tmp_path, use)


def with_imports(code: str, imports: str) -> str:
    """Replace imports from `custom_autograd.extend`, which is above the file, by those from its own layers."""
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
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout
