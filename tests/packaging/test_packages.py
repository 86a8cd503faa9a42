"""A package of ops from its first file to a wheel, and to a build that the `kernels` package loads."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from expecttest import assert_expected_inline

from custom_autograd.cli import main
from custom_autograd.core.errors import DeclarationError, KernelUnavailable
from custom_autograd.kernels.compilers import PLATFORM
from custom_autograd.packaging.project import build_project, read_project

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler")

USE = """
import torch
from myops import soft_clip, weighted_square

x, weight = torch.randn(5, 7, requires_grad=True), torch.randn(7)
out = weighted_square(x, weight)
out.sum().backward()
assert torch.equal(weight * x * x, out)
assert torch.allclose(2 * weight * x, x.grad)
(library,) = [path for path in torch.ops.loaded_libraries if "_prebuilt" in path]
try:
    weighted_square(x, weight[:3])
except RuntimeError as error:
    print("'weight' must have one element per feature" in str(error))
print(soft_clip(torch.ones(()), 1e9).item())
"""
SETUPTOOLS = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "myops"
version = "0.1.0"

[tool.setuptools.packages.find]
where = ["src"]

[tool.setuptools.package-data]
myops = ["*.cpp", "*.cu"]

[tool.setuptools.cmdclass]
build_py = "custom_autograd.packaging.setuptools.BuildKernels"
bdist_wheel = "custom_autograd.packaging.setuptools.KernelWheel"
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """What `custom-autograd new --package` writes, in a folder of its own."""
    folder = tmp_path_factory.mktemp("new")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        main(["new", "--package", "myops"])
    return folder / "myops"


@pytest.fixture
def copy(project, tmp_path, monkeypatch):
    """A copy to be changed."""
    monkeypatch.setenv("CUSTOM_AUTOGRAD_BUILD_CUDA", "0")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shutil.copytree(project, tmp_path / "myops")
    return tmp_path / "myops"


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def wheel_of(project: Path) -> Path:
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", str(project / "dist"), str(project)),
    )
    (wheel,) = (project / "dist").glob("*.whl")
    return wheel


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hatchling", "setuptools"])
def test_a_wheel_serves_a_machine_without_a_compiler_and_with_a_cache_that_cannot_be_written(copy, backend, tmp_path):
    if backend == "setuptools":
        (copy / "pyproject.toml").write_text(SETUPTOOLS)
    wheel = wheel_of(copy)
    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel))

    used = run(
        *(sys.executable, "-W", "error::UserWarning", "-c", USE),
        PATH="/nowhere",
        CUSTOM_AUTOGRAD_CACHE="/proc/nowhere",
        PYTHONPATH=os.pathsep.join([str(site), str(ROOT)]),
    )
    assert "True\n1.0\n" == used
    assert wheel.name.startswith("myops-0.1.0-py3-none-")
    assert "any" not in wheel.name


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="manylinux is Linux's")
@pytest.mark.parametrize("backend", ["hatchling", "setuptools"])
def test_a_wheel_becomes_a_manylinux_wheel_without_torchs_libraries(copy, backend, monkeypatch):
    if backend == "setuptools":
        (copy / "pyproject.toml").write_text(SETUPTOOLS)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    wheel = wheel_of(copy)
    left_out = ["--exclude", "libtorch*.so", "--exclude", "libc10*.so", "--exclude", "libcudart.so*"]
    run(sys.executable, "-m", "auditwheel", "repair", str(wheel), "-w", str(copy / "wheelhouse"), *left_out)

    (repaired,) = (copy / "wheelhouse").glob("*.whl")
    assert 28 >= min(int(minor) for minor in re.findall(r"manylinux_2_(\d+)", repaired.name))
    assert repaired.stat().st_size < 2 * wheel.stat().st_size


HUB = """
import sys
import torch
from pathlib import Path
from kernels import get_local_kernel

kernels = [get_local_kernel(Path(folder), trust_remote_code=True) for folder in sys.argv[1:]]
x, weight = torch.randn(5, 7, requires_grad=True), torch.randn(7, requires_grad=True)
for kernel in kernels:
    compiled = torch.compile(kernel.weighted_square, fullgraph=True, backend="aot_eager")
    for function in (kernel.weighted_square, compiled):
        x.grad = None
        function(x, weight).sum().backward()
        assert torch.allclose(2 * weight * x, x.grad)
    assert torch.equal(weight * x * x, kernel.weighted_square(x, weight))
names = {kernel.weighted_square.name.partition("::")[0] for kernel in kernels}
print(len(names), all(name.startswith("myops_") for name in names))
"""
LAYERS = """
import sys
import torch
from pathlib import Path
from kernels import LocalLayerRepository, Mode, kernelize, register_kernel_mapping, use_kernel_forward_from_hub


@use_kernel_forward_from_hub("WeightedSquare")
class Squares(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8))

    def forward(self, x):
        return self.weight * x * x


layer = LocalLayerRepository(Path(sys.argv[1]), layer_name="WeightedSquare")
register_kernel_mapping({"WeightedSquare": {"cpu": layer}})
model, x = torch.nn.Sequential(torch.nn.Linear(4, 8), Squares()), torch.randn(3, 4)
expected = model(x)
model = kernelize(model, mode=Mode.TRAINING | Mode.TORCH_COMPILE, device="cpu")
compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
for found in (model(x), compiled(x)):
    assert torch.allclose(expected, found)
    found.sum().backward()
print(type(model(x).grad_fn).__name__)
"""


@pytest.mark.nightly
def test_two_versions_for_the_kernel_hub_work_in_one_process(copy, tmp_path):
    pytest.importorskip("kernels")
    abi = pytest.importorskip("kernel_abi_check")
    first, second = tmp_path / "first", tmp_path / "second"
    run(sys.executable, "-m", "custom_autograd", "build", str(copy), "--hub", str(first))
    source = copy / "src" / "myops" / "weighted_square.cpp"
    source.write_text(source.read_text() + "// a second version\n")
    run(sys.executable, "-m", "custom_autograd", "build", str(copy), "--hub", str(second), "--kernel-version", "2")

    assert "2 True\n" == run(sys.executable, "-c", HUB, str(first), str(second))
    assert "weighted_square" in run(sys.executable, "-c", LAYERS, str(first))  # the layer calls the op
    for library in first.rglob("*.so"):
        assert not abi.ObjectFile(library).check_python_abi("3.9")
        assert not abi.ObjectFile(library).check_manylinux("manylinux_2_28")


@pytest.mark.slow
def test_a_fixed_namespace_is_refused_for_the_hub(copy, one_level, capsys):
    """Two versions of it could not be loaded in one process."""
    path = copy / "src" / "myops" / "soft_clip.py"
    path.write_text(path.read_text().replace('f"{NAMESPACE}::soft_clip"', '"fixed::soft_clip"'))
    code = main(["build", str(copy), "--hub", str(copy / "hub")])

    assert 2 == code
    text = re.sub(r"fixed_[0-9a-f]{10}", "fixed_HASH", capsys.readouterr().err)
    assert_expected_inline(
        text,
        """\
custom-autograd: myops: two versions of the package could not be loaded in one process: ops have a fixed namespace
  expected   'fixed_HASH::...', which is new in each build
  found      'fixed::soft_clip'
  do         take custom_autograd.packaging.namespace("myops", __file__) as their namespace
""",
    )


def test_an_import_by_name_is_refused_for_the_hub(copy, capsys):
    path = copy / "src" / "myops" / "__init__.py"
    path.write_text(path.read_text().replace("from .soft_clip", "from myops.soft_clip"))
    code = main(["build", str(copy), "--hub", str(copy / "hub")])

    assert 2 == code
    assert_expected_inline(
        capsys.readouterr().err.replace(str(copy), "PROJECT"),
        """\
custom-autograd: myops: a module imports the package by its name, under which the Kernel Hub does not load it
  found      from myops.soft_clip import soft_clip
  rule       PROJECT/src/myops/__init__.py:4
  do         import relatively: from . import ops
""",
    )


def test_a_package_that_cannot_be_imported_says_why(copy, capsys):
    (copy / "src" / "myops" / "__init__.py").write_text("import no_such_dependency\n")
    code = main(["build", str(copy)])

    assert 1 == code
    found = capsys.readouterr().err
    assert "No module named 'no_such_dependency'" in found
    assert "build-system.requires" in found


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("packages = 'myops'", "did you mean 'package'?"),
        ("package = 3", "expected   str"),
        ("torch = '2'", "expected   'major.minor'"),
        ("folder = 'nowhere'", "which package declares the kernels"),
        ("package = ", "this is not TOML"),
        ("package = ''", "'package' is not a package"),
        ("package = '/etc'", "'package' is not a package"),
        ("folder = '../..'", "'folder' is outside of the project"),
        ("torch = '2.9'", "no library can serve 'torch' from that version on"),
        ("torch = '99.0'", "no library can serve 'torch' from that version on"),
    ],
)
def test_a_table_with_a_mistake(tmp_path, table, problem):
    (tmp_path / "pyproject.toml").write_text(f"[tool.custom_autograd.build]\n{table}\n")

    with pytest.raises(DeclarationError) as raised:
        read_project(tmp_path)
    assert problem in str(raised.value)


@pytest.mark.parametrize("text", ["tool = 3", "[tool]\ncustom_autograd = 3", "[tool.custom_autograd]\nbuild = 3"])
def test_a_table_that_is_none(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text)

    with pytest.raises(DeclarationError, match="is not a table"):
        read_project(tmp_path)


def test_a_variable_for_cuda_that_says_neither(copy, monkeypatch):
    monkeypatch.setenv("CUSTOM_AUTOGRAD_BUILD_CUDA", "maybe")

    with pytest.raises(DeclarationError, match="expected   '0' or '1'"):
        read_project(copy)


def test_cuda_sources_without_nvcc_are_refused_before_anything_is_removed(copy, monkeypatch):
    monkeypatch.setenv("CUSTOM_AUTOGRAD_BUILD_CUDA", "1")
    monkeypatch.setenv("NVCC", "/nowhere/nvcc")
    earlier = copy / "src" / "myops" / "_prebuilt" / "earlier.json"
    earlier.parent.mkdir(exist_ok=True)
    earlier.touch()

    with pytest.raises(KernelUnavailable) as raised:
        build_project(read_project(copy))

    assert earlier.is_file()
    assert_expected_inline(
        str(raised.value),
        """\
weighted_square.cu: no CUDA compiler for the kernel
  expected   nvcc of CUDA 12 or later, on Linux
  found      '/nowhere/nvcc', which is not there
  do         install the CUDA toolkit, set NVCC or CUDA_HOME, or build without CUDA: CUSTOM_AUTOGRAD_BUILD_CUDA=0""",
    )


@pytest.mark.slow
def test_build_names_what_it_wrote(copy, one_level, capsys):
    assert 0 == main(["build", str(copy)])

    found = capsys.readouterr().out.replace(str(copy), "PROJECT").replace(PLATFORM, "PLATFORM").splitlines()
    assert "wrote PROJECT/src/myops/_prebuilt/weighted_square.cpp.PLATFORM.json" == found[0]
    assert all(line.endswith(".so") for line in found[1:])


@pytest.mark.parametrize("name", ["my-ops", "class", ""])
def test_a_package_of_a_name_that_cannot_be_imported_is_not_written(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    assert 2 == main(["new", "--package", name])
    assert "cannot be imported" in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["json", "torch", "custom_autograd"])
def test_a_package_of_a_name_that_is_taken_is_not_written(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    assert 2 == main(["new", "--package", name])
    assert "another package has that name" in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("option", [["--output", "ops.py"], ["--kernel", "cpp"]])
def test_options_of_an_op_are_not_those_of_a_package(option, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    assert 2 == main(["new", "--package", "myops", *option])
    assert "no --output, no --kernel" in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("line", ["import space.ops", "from space import ops", "from space.ops.other import x"])
def test_an_import_of_a_package_with_a_dot_is_refused_for_the_hub(line, tmp_path, capsys):
    package = tmp_path / "space" / "ops"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(line)
    (tmp_path / "pyproject.toml").write_text("[tool.custom_autograd.build]\npackage = 'space.ops'\n")

    assert 2 == main(["build", str(tmp_path), "--hub", str(tmp_path / "hub")])
    assert f"found      {line}" in capsys.readouterr().err


@pytest.mark.slow
def test_a_package_with_a_dot_has_an_id_without_for_the_hub(tmp_path):
    package = tmp_path / "space" / "ops"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text("[tool.custom_autograd.build]\npackage = 'space.ops'\n")

    assert 0 == main(["build", str(tmp_path), "--hub", str(tmp_path / "hub")])
    (metadata,) = (tmp_path / "hub" / "build").glob("*/metadata.json")
    found = json.loads(metadata.read_text())
    assert "space-ops" == found["name"]
    assert found["id"].startswith("_space_ops_")


@pytest.mark.slow
@pytest.mark.nightly
def test_a_new_package_passes_its_own_tests(copy):
    run(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(copy)),
        PYTHONPATH=os.pathsep.join([str(copy / "src"), str(ROOT)]),
    )
