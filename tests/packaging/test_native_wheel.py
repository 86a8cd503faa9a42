"""The library of native calls that our wheel brings: used without a compiler, and only where it fits."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="our wheels with libraries are for Linux"),
]

CALL = """
import torch
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.native import loading


@custom_op("wheel::double")
def double(x: Tensor) -> Tensor:
    return x * 2


double.register_backward(lambda grad: grad * 2)
x = torch.ones(2, requires_grad=True)
for _ in range(3):
    y = double(x)
loading.library.wait()
y = double(x)
y.sum().backward()
assert x.grad.tolist() == [2.0, 2.0]
print(type(y.grad_fn).__module__, loading.library.reason.partition("\\n")[0])
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A copy of the package with the library for this torch and this Python."""
    folder = tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT / "custom_autograd", folder / "custom_autograd", ignore=shutil.ignore_patterns("_prebuilt"))
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    version = torch.__version__.partition("+")[0]
    command = [sys.executable, str(folder / ".ci" / "prebuilt.py"), version, "--pythons", sys.executable]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return folder


@pytest.fixture
def package(built, tmp_path):
    """A copy to be changed."""
    shutil.copytree(built, tmp_path / "copy")
    return tmp_path / "copy"


def call(package: Path, mode: str) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(package),
        "CUSTOM_AUTOGRAD_NATIVE": mode,
        "CUSTOM_AUTOGRAD_CACHE": "/proc/nowhere",
        "CXX": "no-compiler",
    }
    done = subprocess.run(
        [sys.executable, "-c", CALL], env=environment, cwd=package, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_calls_are_native_without_a_compiler_and_a_cache(package):
    assert "custom_autograd.native loaded\n" == call(package, "require")


def test_a_damaged_library_is_not_loaded(package):
    (library,) = package.rglob("_prebuilt/*.so")
    contents = bytearray(library.read_bytes())
    contents[len(contents) // 2] ^= 1
    library.write_bytes(contents)

    assert "a prebuilt file of the kernel is damaged" in call(package, "1")


def test_a_library_of_other_sources_is_not_loaded(package):
    source = package / "custom_autograd" / "native" / "source" / "call.cpp"
    source.write_text(source.read_text() + "// changed\n")

    assert "custom_autograd.native" not in call(package, "1").partition(" ")[0]


def test_a_library_for_another_torch_is_not_loaded(package):
    (manifest,) = package.rglob("_prebuilt/*.json")
    version = ".".join(torch.__version__.split(".")[:2])
    manifest.rename(manifest.with_name(manifest.name.replace(f"torch{version}-", "torch9.9-")))

    assert "the package brings no library of the kernel for this platform" in call(package, "1")
