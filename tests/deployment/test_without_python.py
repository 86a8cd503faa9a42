"""A library of an op for programs without Python: what it holds, a C++ program that runs it, and what it refuses."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from expecttest import assert_expected_inline
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.core.errors import RegistrationError
from custom_autograd.kernels import KernelUnavailable, cpp_kernel, cuda_kernel
from python_server import run_python

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "deployment"
needs_compiler = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler")

SOURCE = """
#include <custom_autograd/kernel.h>
using namespace custom_autograd;

Tensor scaled(const Tensor& x, int64_t by, const std::optional<Tensor>& bias) {
  check_contiguous(x, "x");
  Tensor out = allocate_like(x);
  for (int64_t i = 0; i < x.numel(); ++i)
    write<float>(out)[i] = by * read<float>(x)[i] + (bias ? read<float>(*bias)[i] : 0);
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("scaled(Tensor x, int factor, Tensor? bias) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("scaled", TORCH_BOX(&scaled)); }
"""


@custom_op("deployed::scaled", reference=True)
def scaled(x: Tensor, by: int = 2, bias: Tensor | None = None) -> Tensor:
    return x * by + (0 if bias is None else bias)


@custom_op("deployed::other", reference=True)
def other(x: Tensor, by: float = 2.0) -> Tensor:
    return x * by


@pytest.fixture
def kernel(tmp_path):
    (tmp_path / "scaled.cpp").write_text(SOURCE)
    return cpp_kernel(tmp_path / "scaled.cpp", "scaled")


LOADED = """
import sys
import torch

torch.ops.load_library(sys.argv[1])
x, bias = torch.arange(3.0), torch.ones(3)
op = torch.ops.deployed.scaled
print(op.default._schema)
print(op(x).tolist(), op(x, 3, bias).tolist(), op(x, bias=bias).tolist())
print([name for name in sys.modules if name.startswith("custom_autograd")])
"""


@pytest.mark.slow
@needs_compiler
def test_a_library_has_the_op_with_its_names_and_defaults(kernel, tmp_path):
    library = scaled.build_library(tmp_path / "lib" / "scaled.so", kernel=kernel)
    done = run_python("-c", LOADED, library)

    assert_expected_inline(
        done.stdout,
        """\
deployed::scaled(Tensor x, SymInt by=2, Tensor? bias=None) -> Tensor
[0.0, 2.0, 4.0] [1.0, 4.0, 7.0] [1.0, 3.0, 5.0]
[]
""",
    )


STRIDED = """
import sys
import torch

torch.ops.load_library(sys.argv[1])
x, bias = torch.arange(6.0).view(2, 3).t(), torch.arange(6.0).view(2, 3).t()
for given in (bias, None):
    found = torch.ops.deployed.laid_out(x, 3, given)
    assert torch.equal(3 * x + (0 if given is None else given), found), found
print(found.is_contiguous())
"""


@pytest.mark.slow
@needs_compiler
def test_a_library_makes_the_layouts_of_a_kernel(kernel, tmp_path):
    """The kernel reads memory without a look at strides."""
    kernel.source.write_text(SOURCE.replace('check_contiguous(x, "x");', ""))
    op = custom_op("deployed::laid_out", scaled.python_function, reference=True)
    op.register_kernel("cpu", layouts="contiguous")(kernel)
    library = op.build_library(tmp_path / "laid_out.so")
    done = run_python("-c", STRIDED, library)

    assert "True\n" == done.stdout, done.stderr


def test_a_layout_that_is_not_contiguous_is_refused(kernel, tmp_path):
    op = custom_op("deployed::images", scaled.python_function, reference=True)
    op.register_kernel("cpu", layouts={"x": "channels_last"})(kernel)

    assert_expected_inline(
        refusal(op, None, tmp_path),
        """\
deployed::images: the layout of 'x' cannot be made without Python
  expected   layouts= with 'contiguous', 'contiguous_rows', of a tensor that is not written
  found      'channels_last', for Tensor
  declared   test_without_python.py:LINE
  do         name a C++ function that takes any layout: kernel=cpp_kernel(...)""",
    )


@pytest.mark.slow
@needs_compiler
@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")
def test_a_program_in_c_plus_plus_computes_what_python_does(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(*command):
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert 0 == done.returncode, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, str(EXAMPLE / "export.py"), str(tmp_path))
    run("cmake", "-S", str(EXAMPLE), "-B", "build", f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}")
    run("cmake", "--build", "build")
    printed = run("build/run", "model.pt2", "./libswish.so", "input.bin", "expected.bin")

    assert float(printed.removeprefix("largest difference ")) <= 1e-6
    assert "python" not in run("ldd", "build/run").replace(torch.__path__[0], "")


def refusal(op, kernel, tmp_path):
    with pytest.raises(RegistrationError) as raised:
        op.build_library(tmp_path / "refused.so", kernel=kernel)
    assert not (tmp_path / "refused.so").exists()
    text = str(raised.value).replace(str(tmp_path), "FOLDER")
    return re.sub(r"\.py:\d+", ".py:LINE", text)


def test_a_python_kernel_is_refused(tmp_path):
    assert_expected_inline(
        refusal(scaled, None, tmp_path),
        """\
deployed::scaled: the op has no C++ kernel that could run without Python
  expected   op.register_kernel('cpu')(cpp_kernel(...)), without a Python function around it
  found      default kernel, a Python function
  rule       test_without_python.py:LINE
  declared   test_without_python.py:LINE
  do         name a C++ function that computes it, kernel=cpp_kernel(...), or decompose the op: op.decompositions()""",
    )


def test_a_function_of_another_type_is_refused(kernel, tmp_path):
    assert_expected_inline(
        refusal(other, kernel, tmp_path),
        """\
deployed::other: the C++ function 'scaled' is not the op: argument 2 differs
  expected   float by
  found      int
  rule       FOLDER/scaled.cpp
  declared   test_without_python.py:LINE
  do         give the function the op's schema, or decompose the op: op.decompositions()""",
    )


def test_a_source_that_does_not_show_its_schema_is_refused(kernel, tmp_path):
    kernel.source.write_text(SOURCE.replace('m.def("scaled(', 'm.def(PREFIX "('))

    assert_expected_inline(
        refusal(scaled, kernel, tmp_path),
        """\
deployed::scaled: scaled.cpp does not show the schema of 'scaled'
  rule       FOLDER/scaled.cpp
  declared   test_without_python.py:LINE
  do         write it as one literal: m.def("scaled(...) -> ...")""",
    )


@custom_op("deployed::quoted", reference=True)
def quoted(x: Tensor, mode: str = "a 'quote'") -> Tensor:
    return x.clone()


@custom_op("deployed::conditional", reference=True)
def conditional(x: Tensor, by: int = 2, bias: Tensor | None = None) -> Tensor:
    return x * by + (0 if bias is None else bias)


def test_a_default_that_only_python_fills_in_is_refused(kernel, tmp_path):
    assert_expected_inline(
        refusal(quoted, kernel, tmp_path),
        """\
deployed::quoted: the default of 'mode' is not that of the library: no schema can say it
  expected   a number, or a text of letters, digits, spaces and any of _.:/+-
  found      "a 'quote'"
  declared   test_without_python.py:LINE
  do         change the default, or decompose the op: op.decompositions()""",
    )


def test_a_kernel_with_a_condition_is_refused_unless_it_is_named(kernel, tmp_path):
    conditional.register_kernel("cpu", when=lambda by: by > 2)(kernel)

    assert_expected_inline(
        refusal(conditional, None, tmp_path),
        """\
deployed::conditional: the op's first kernel for the CPU has a condition, and a library would call it without
  found      cpu kernel with when=
  rule       scaled.cpp, 'scaled'
  declared   test_without_python.py:LINE
  do         name the C++ function that serves every call: kernel=cpp_kernel(...)""",
    )


@pytest.mark.parametrize("wrong", ["scaled.cpp", len, cuda_kernel("scaled.cu", "scaled")])
def test_what_is_no_cpp_kernel_is_refused(wrong, tmp_path):
    assert "'kernel' is not a C++ function for the CPU\n  expected   cpp_kernel(...)" in refusal(
        scaled, wrong, tmp_path
    )


def test_a_path_that_is_none_is_refused(kernel):
    with pytest.raises(RegistrationError, match="deployed::scaled: 'path' is not a path"):
        scaled.build_library(None, kernel=kernel)


def test_a_source_that_is_not_there():
    with pytest.raises(KernelUnavailable, match="deployed::scaled: the source of 'scaled' cannot be read"):
        scaled.build_library("refused.so", kernel=cpp_kernel("no/such.cpp", "scaled"))


@pytest.mark.slow
@needs_compiler
def test_a_folder_that_cannot_be_written(kernel):
    with pytest.raises(KernelUnavailable, match="the library of the op cannot be built"):
        scaled.build_library("/proc/nowhere/scaled.so", kernel=kernel)


def test_an_op_without_a_reference_has_no_decomposition():
    @custom_op("deployed::opaque")
    def opaque(x: Tensor) -> Tensor:
        return x.clone()

    with pytest.raises(RegistrationError, match="has no reference, by which a program could do without it"):
        opaque.decompositions()


def test_the_python_function_is_the_one_that_was_decorated():
    def plain(x: Tensor) -> Tensor:
        return x + 1

    def with_container(x: dict[str, Tensor]) -> Tensor:
        return x["a"] + 1

    assert plain is custom_op("deployed::plain", plain).python_function
    assert with_container is custom_op("deployed::with_container", with_container).python_function
