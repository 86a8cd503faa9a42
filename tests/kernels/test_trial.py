"""A new library raises one exception in another process: it is linked so that this arrives in Python, or refused."""

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
from custom_autograd.kernels import KernelUnavailable, KernelWarning, compilers, cpp_kernel
from custom_autograd.kernels.compilers import Failure, failure_of
from custom_autograd.kernels.cuda import CudaCompiler
from custom_autograd.native.loading import library as native

pytestmark = [
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
    pytest.mark.skipif(os.name != "posix", reason="kernels are built on Linux and macOS only"),
]

SOURCE = """
#include <custom_autograd/kernel.h>

static torch::stable::Tensor refuses(const torch::stable::Tensor& x) {
  STD_TORCH_CHECK(x.dim() == 7, "'x' has ", x.dim(), " dimensions");
  return x;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, library) { library.def("refuses(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, library) { library.impl("refuses", TORCH_BOX(&refuses)); }
"""

ENDS_THE_PROCESS = """
#include <cstdlib>
extern "C" void __cxa_throw(void*, void*, void (*)(void*)) { std::abort(); }
"""
"""What throws in the library ends the process, however it is linked."""

RUNTIME_OF_ITS_OWN = "c++ -static-libstdc++ -static-libgcc"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache of the test's own."""
    monkeypatch.setenv("CUSTOM_AUTOGRAD_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "refuses.cpp"
    path.write_text(SOURCE)
    return path


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The library of the source, built by the compiler that is there."""
    folder = tmp_path_factory.mktemp("trial")
    (folder / "refuses.cpp").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUSTOM_AUTOGRAD_CACHE", str(folder / "cache"))
        return cpp_kernel(folder / "refuses.cpp", "refuses").build()[1]


@pytest.mark.slow
def test_exceptions_arrive_from_a_compiler_that_links_a_runtime_of_its_own(source, monkeypatch):
    """The toolchain of a CUDA image does: kernels that refused their input ended the process, by both ways to call."""
    monkeypatch.setenv("CXX", RUNTIME_OF_ITS_OWN)
    kernel = cpp_kernel(source, "refuses")
    with pytest.raises(RuntimeError, match="'x' has 1 dimensions"):
        kernel.load()(torch.ones(1))

    with pytest.raises(RuntimeError, match="'x' has 1 dimensions"):
        kernel(torch.ones(1))


@pytest.mark.slow
def test_library_with_a_runtime_of_its_own_is_refused_with_what_was_tried(source, monkeypatch):
    """Where the runtime that torch has loaded is not known, there is one way to link."""
    monkeypatch.setenv("CXX", RUNTIME_OF_ITS_OWN)
    monkeypatch.setattr(compilers, "loaded_runtime", list)

    with pytest.raises(KernelUnavailable) as raised:
        cpp_kernel(source, "refuses").load()

    assert_expected_inline(
        without_versions(str(raised.value)),
        """\
refuses.cpp: an exception that the kernel raises does not arrive in Python, and may end a process
  expected   a library whose exceptions torch can catch
  found      COMPILER, torch VERSION
             linked with the C++ runtime that the compiler links:
             the process was ended by SIG...
  do         set CXX to a compiler that links libstdc++ as a shared library, or remove flags that change that""",
    )


@pytest.mark.slow
def test_next_kernel_runs_if_exceptions_of_the_first_end_the_process(source):
    source.write_text(ENDS_THE_PROCESS + SOURCE)

    @custom_op("test_trial::refuses", mutates_args=())
    def refuses(x: Tensor) -> Tensor:
        return x.clone()

    refuses.register_kernel("cpu", name="cpp")(cpp_kernel(source, "refuses"))
    refuses.register_kernel("cpu", name="next", priority=-1)(lambda x: x + 1)

    with pytest.warns(KernelWarning) as warned:
        found = refuses(torch.ones(2))

    assert [2.0, 2.0] == found.tolist()
    assert_expected_inline(
        without_versions(str(warned[0].message)),
        """\
refuses.cpp: an exception that the kernel raises does not arrive in Python, and may end a process
  expected   a library whose exceptions torch can catch
  found      COMPILER, torch VERSION
             linked with /.../libstdc++.so and /.../libgcc_s.so, which torch has loaded:
             the process was ended by SIG...
             linked with the C++ runtime that the compiler links:
             the process was ended by SIG...
  do         set CXX to a compiler that links libstdc++ as a shared library, or remove flags that change that
  meanwhile  the cpu kernel 'cpp' of test_trial::refuses is passed over""",
    )


@pytest.mark.slow
def test_exception_has_to_arrive_in_the_library_of_native_calls(library, tmp_path):
    """One that ends in a foreign library would be lost to native calls alone."""
    other = tmp_path / "loses.so"
    command = ["c++", "-x", "c", "-shared", "-fPIC", "-o", str(other), "-"]
    text = "int custom_autograd_catches(void* kernel, unsigned long number) { return 0; }"
    subprocess.run(command, input=text, text=True, check=True)

    found = failure_of(library, other)

    expected = "the exception was raised, but did not arrive\nthe process ended by itself, with exit code 0"
    assert Failure("raising", expected) == found


@pytest.mark.skipif(native.module is None, reason=native.reason)
def test_exception_arrives_in_the_library_of_native_calls(library):
    assert failure_of(library, Path(native.module.__file__)) is None


def test_library_without_the_header_has_nothing_to_raise(tmp_path):
    library = tmp_path / "plain.so"
    command = ["c++", "-x", "c", "-shared", "-fPIC", "-o", str(library), "-"]
    subprocess.run(command, input="int one(void) { return 1; }", text=True, check=True)

    assert failure_of(library) is None


@pytest.mark.slow  # builds the library of native calls; the tests above look at a library of their own
@pytest.mark.nightly
def test_native_calls_built_by_a_compiler_that_links_a_runtime_of_its_own_catch_exceptions(source, tmp_path):
    program = f"""
import torch
from custom_autograd.kernels import cpp_kernel
from custom_autograd.native.loading import library

library.load()
kernel = cpp_kernel({str(source)!r}, "refuses")
for _ in range(3):
    try:
        kernel(torch.ones(1))
    except RuntimeError as error:
        print(str(error).splitlines()[0].rpartition(", ")[2])
"""
    added = {"CXX": RUNTIME_OF_ITS_OWN, "CUSTOM_AUTOGRAD_NATIVE": "1"}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env={**os.environ, **added}, capture_output=True, text=True, check=False)

    assert (["'x' has 1 dimensions"] * 3, 0) == (ended.stdout.splitlines(), ended.returncode), ended.stderr


def without_versions(message):
    """A message without what depends on the machine."""
    message = re.sub(r"/\S+/(lib\w+[+]*\.so)\S*?(?=[ ,])", r"/.../\1", message)
    message = re.sub(r"SIG(ABRT|SEGV), .*", "SIG...", message)
    message = re.sub(r"\n +(terminate called|what\(\)).*", "", message)
    return re.sub(r"found      .*, torch .*", "found      COMPILER, torch VERSION", message)


@pytest.mark.parametrize("program", ["/no/such/python", os.devnull])
def test_library_is_used_untried_if_the_python_of_the_process_cannot_be_started(library, program, monkeypatch):
    """It was moved or replaced meanwhile: the library was refused, with the advice to choose another cache."""
    monkeypatch.setattr(sys, "executable", program)

    assert failure_of(library) is None


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_nvcc_links_a_runtime_whose_path_has_spaces_and_commas(tmp_path):
    folder = tmp_path / "a, b"
    folder.mkdir()
    runtime, source, made = folder / "libruntime.so.6", tmp_path / "one.cu", tmp_path / "one.so"
    command = ["c++", "-x", "c", "-shared", "-fPIC", "-Wl,-soname,libruntime.so.6", "-o", str(runtime), "-"]
    subprocess.run(command, input="int of_runtime(void) { return 1; }", text=True, check=True)
    source.write_text('extern "C" int of_runtime(); int one() { return of_runtime(); }')
    words = ["nvcc", "-shared", "-Xcompiler=-fPIC", CudaCompiler().as_input(str(runtime))]
    subprocess.run([*words, "-o", str(made), str(source)], check=True)

    assert b"libruntime.so.6" in made.read_bytes()
