"""The next kernel runs if a driver or a compiler refuses a launch; any other failure is the kernel's, and raises."""

from __future__ import annotations

import os
import subprocess
import warnings

import pytest
import torch
from expecttest import assert_expected_inline
from tables import each
from torch import Tensor

from custom_autograd import KernelError, custom_op, through_dispatcher
from custom_autograd.kernels import (
    CppKernel,
    CudaKernel,
    KernelUnavailable,
    KernelWarning,
    cuda_kernel,
    triton,
    triton_kernel,
)
from custom_autograd.kernels.launches import unavailable
from custom_autograd.native.loading import library
from python_server import run_python

REFUSALS = {
    "no driver": (
        RuntimeError("0 active drivers ([]). There should only be one."),
        "a GPU that Triton has a driver for",
    ),
    "no compiler": (RuntimeError("Failed to find C compiler. Please specify via CC environment variable."), "launcher"),
    "no headers": (
        subprocess.CalledProcessError(1, ["gcc", "main.c"]),
        "the launcher of the kernel cannot be compiled",
    ),
    "no ptxas": (RuntimeError("Cannot find ptxas"), "needs ptxas"),
    "shared memory": (RuntimeError("out of resource: shared memory, Required: 9, Hardware limit: 1."), "the resources"),
    "another architecture": (
        RuntimeError("times was not launched: no kernel image is available for execution on the device"),
        "no code that this GPU can run",
    ),
    "too old for a dtype": (
        ValueError("type fp8e4nv not supported in this architecture."),
        "no code that this GPU can run",
    ),
    "old driver": (
        RuntimeError("times was not launched: the provided PTX was compiled with an unsupported toolchain."),
        "the driver of the GPU is too old",
    ),
    "older driver": (RuntimeError("CUDA driver version is insufficient for CUDA runtime version"), "too old"),
}

FAILURES = {
    "out of memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB."),
    "foreign memory": RuntimeError("CUDA error: an illegal memory access was encountered"),
    "a launch that is too large": RuntimeError("times was not launched: invalid configuration argument"),
    "arguments": ValueError("arange's range must be a power of 2"),
    "none of these": RuntimeError("'x' must be a contiguous CUDA tensor"),
}


@each(("error", "problem"), REFUSALS.values(), ids=REFUSALS)
def test_what_a_driver_or_a_compiler_refuses_is_unavailable(error, problem):
    found = unavailable("times", error)

    assert problem in found.problem
    assert str(error).partition("\n")[0] == found.found
    assert found.do is not None


@pytest.mark.parametrize("error", FAILURES.values(), ids=FAILURES)
def test_failures_of_a_kernel_are_its_own(error):
    assert unavailable("times", error) is None


# ------------------------------------------------------------------------------------------------------------ Triton


@triton_kernel
def doubling(x, out, size):
    raise AssertionError("it is not compiled here")


def triple_(x):
    x.mul_(3)


class Compiled:
    """A compiled kernel that a driver refuses, for as long as it has errors."""

    def __init__(self, *errors):
        self.errors = list(errors)

    def __getitem__(self, grid):
        return self.launch

    def launch(self, x, out, size):
        if self.errors:
            raise self.errors.pop(0)
        out.copy_(2 * x)


def make_op(name):
    op = custom_op(f"refused::{name}", lambda x: x * 3, schema="(Tensor x) -> Tensor", replace=True)

    @op.register_kernel("cpu", name="triton")
    def _(x):
        out = torch.empty_like(x)
        doubling[(1,)](x, out, x.numel())
        return out

    return op


def test_the_next_kernel_runs_for_one_that_triton_cannot_launch(monkeypatch):
    monkeypatch.setattr(doubling, "_compiled", Compiled(*[REFUSALS["no ptxas"][0]] * 9))
    op, x = make_op("ptxas"), torch.ones(2)
    with pytest.warns(KernelWarning) as caught:
        found = [op(x).tolist() for _ in range(3)]

    assert [[3.0, 3.0]] * 3 == found
    assert 1 == len(caught)
    assert_expected_inline(
        str(caught[0].message),
        """\
doubling: the kernel needs ptxas, the assembler of CUDA
  found      Cannot find ptxas
  do         set TRITON_PTXAS_PATH, install Triton again, or register another kernel for the device
  meanwhile  the cpu kernel 'triton' of refused::ptxas is passed over""",
    )


@pytest.mark.parametrize(("refusal", "expected"), [("no driver", [3.0, 3.0]), ("shared memory", None)])
def test_no_other_kernel_runs_on_arguments_that_may_have_been_written_to(monkeypatch, refusal, expected):
    """A kernel may launch several times, and write with the first launch what the next kernel would read."""
    monkeypatch.setattr(doubling, "_compiled", Compiled(REFUSALS[refusal][0]))
    name = f"refused::{refusal.replace(' ', '_')}"
    op = custom_op(name, triple_, schema="(Tensor(a!) x) -> ()", mutates_args="x")
    op.register_kernel("cpu", lambda x: doubling[(1,)](x, x, x.numel()))
    x = torch.ones(2)
    if expected is None:
        with pytest.raises(KernelUnavailable, match="does not have the resources"):
            op(x)
    else:
        with pytest.warns(KernelWarning, match="is passed over"):
            op(x)

    assert x.tolist() == (expected or [1.0, 1.0])


def test_a_kernel_that_is_out_of_memory_raises_and_runs_the_next_time(monkeypatch):
    error = FAILURES["out of memory"]
    monkeypatch.setattr(doubling, "_compiled", Compiled(error, error))
    op, x = make_op("memory"), torch.ones(2)
    with pytest.raises(torch.OutOfMemoryError) as first:
        op(x)
    with through_dispatcher(), pytest.raises(torch.OutOfMemoryError) as second:
        op(x)

    assert first.value is second.value is error
    assert [[2.0, 2.0]] * 2 == [op(x).tolist() for _ in range(2)]


@pytest.mark.skipif(library.module is None, reason=library.reason)
def test_a_native_call_that_is_out_of_memory_raises_and_runs_the_next_time(monkeypatch):
    monkeypatch.setattr(doubling, "_compiled", Compiled())
    op, x = make_op("native_memory"), torch.ones(2, requires_grad=True)
    op.register_backward(lambda grad: 2 * grad)
    for _ in range(3):
        op(x)
    assert op._native.count_kinds() > 0
    doubling._compiled.errors.append(FAILURES["out of memory"])
    with pytest.raises(torch.OutOfMemoryError):
        op(x)
    op(x).sum().backward()

    assert [2.0, 2.0] == x.grad.tolist()


def test_triton_is_not_launched_with_memory_of_two_gpus(monkeypatch):
    monkeypatch.setattr(triton, "_are_several", lambda: True)
    monkeypatch.setattr(doubling, "_compiled", Compiled())
    out = torch.empty(2)
    doubling[(1,)](torch.ones(2), out, 2)
    assert [2.0, 2.0] == out.tolist()

    with pytest.raises(KernelError, match=r"^doubling: tensors on two devices: 'x' is on meta, 'out' is on cpu\n"):
        doubling[(1,)](torch.ones(2, device="meta"), out, 2)


# ---------------------------------------------------------------------------------------------------------- CUDA C++


SOURCE = """
#include <custom_autograd/kernel.h>
using namespace custom_autograd;

Tensor times(const Tensor& x, int64_t refuses) {
  STD_TORCH_CHECK(!refuses, "times was not launched: no kernel image is available for execution on the device");
  Tensor out = allocate_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) write<float>(out)[i] = 2 * read<float>(x)[i];
  return out;
}

void double_(const Tensor& x, int64_t refuses) {
  for (int64_t i = 0; i < x.numel(); ++i) write<float>(x)[i] *= 2;
  STD_TORCH_CHECK(!refuses, "no kernel image is available for execution on the device");
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("times(Tensor x, int refuses) -> Tensor");
  m.def("double_(Tensor(a!) x, int refuses) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("times", TORCH_BOX(&times));
  m.impl("double_", TORCH_BOX(&double_));
}
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A source of which the compiler for C++ builds what stands for code for GPUs."""
    monkeypatch.setattr(CudaKernel, "build", CppKernel.build)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    path = tmp_path / "times.cpp"
    path.write_text(SOURCE)
    try:
        CppKernel(path, "times", None, ()).build()
    except KernelUnavailable as error:
        pytest.skip(str(error))
    return path


def test_the_next_kernel_runs_for_code_that_was_built_for_other_gpus(source):
    @custom_op("refused::times", replace=True)
    def op(x: Tensor, refuses: int) -> Tensor:
        return x * 3

    kernel = cuda_kernel(source, "times")
    op.register_kernel("cpu", name="cuda_cpp")(kernel)
    with pytest.warns(KernelWarning, match="the cpu kernel 'cuda_cpp' of refused::times is passed over") as caught:
        found = [op(torch.ones(1), 1).item() for _ in range(3)]

    assert [3.0] * 3 == found
    assert 1 == len(caught)
    with pytest.raises(KernelUnavailable) as refused:
        kernel(torch.ones(1), 0)
    assert_expected_inline(
        str(refused.value),
        """\
times.cpp: the kernel has no code that this GPU can run
  found      times, times.cpp:6, times was not launched: no kernel image is available for execution on the device
  do         unset TORCH_CUDA_ARCH_LIST, or add the compute capability of the GPU to it, or register another kernel""",
    )


@pytest.mark.parametrize("is_loaded", [False, True], ids=["calls", "threads that make the first call together"])
def test_the_fallback_runs_for_code_that_was_built_for_other_gpus_with_one_warning(source, is_loaded):
    kernel = cuda_kernel(source, "times", fallback=lambda x, refuses: x * 5)
    call, refuses = (kernel.load(), (1, 1)) if is_loaded else (kernel, (1, 0, 0))
    with pytest.warns(KernelWarning, match="no code that this GPU can run") as caught:
        found = [call(torch.ones(1), one).item() for one in refuses]

    assert [5.0] * len(refuses) == found
    assert 1 == len(caught)


def times_five_(x, refuses):
    x.mul_(5)


@pytest.mark.parametrize("fallback", [None, times_five_], ids=["next kernel", "fallback"])
def test_nothing_runs_on_arguments_that_refused_code_may_have_written_to(source, fallback):
    """It may have written before the launch that the GPU refuses, as this function does."""

    @custom_op("refused::double_", mutates_args="x", replace=True)
    def op(x: Tensor, refuses: int) -> None:
        x.mul_(5)

    op.register_kernel("cpu", name="cuda_cpp")(cuda_kernel(source, "double_", fallback=fallback))
    x, y = torch.ones(1), torch.ones(1)
    with pytest.raises(KernelUnavailable, match="no code that this GPU can run"):
        op(x, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KernelWarning)
        op(y, 1)

    assert [2.0, 5.0] == [x.item(), y.item()]


def test_code_that_a_gpu_runs_is_called_without_python_from_then_on(source):
    kernel = cuda_kernel(source, "times")
    with pytest.raises(RuntimeError, match="Expected a value of type"):
        kernel(torch.ones(1), "a mistake in the call, not of the GPU")
    found = [kernel(torch.ones(1), 0).item() for _ in range(3)]

    assert [2.0] * 3 == found
    assert kernel.operator is not None
    assert library.module is None or kernel._native.address("CPU") != 0


# ------------------------------------------------------------------------------------------------------ no such device


PROGRAM = """
import warnings
import torch
from custom_autograd import custom_op
from custom_autograd.kernels import cuda_kernel, tl, triton_kernel

@triton_kernel
def double(x, out, size) -> None:
    place = tl.arange(0, size)
    tl.store(out + place, 2 * tl.load(x + place))

op = custom_op("hidden::op", lambda x: x * 3, schema="(Tensor x) -> Tensor")
op.register_kernel("cpu", name="cuda_cpp", priority=2)(cuda_kernel("times.cu", "times"))

@op.register_kernel("cpu", name="triton", priority=1)
def _(x):
    out = torch.empty_like(x)
    double[(1,)](x, out, x.numel())
    return out

op.register_backward(lambda grad: 3 * grad)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x = torch.ones(4, requires_grad=True)
    for _ in range(3):
        op(x).sum().backward()
print(x.grad.tolist(), len(caught), *(str(one.message).splitlines()[0] for one in caught), sep="\\n")
"""


def test_hidden_devices_leave_the_kernel_of_the_host(tmp_path):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("TRITON_INTERPRET", None)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    finished = run_python(program, env=environment)
    assert finished.returncode == 0, finished.stderr
    gradients, count, *problems = finished.stdout.splitlines()

    assert "[9.0, 9.0, 9.0, 9.0]" == gradients
    assert "2" == count
    assert "times.cu: the kernel needs an NVIDIA GPU" == problems[0]
    assert problems[1] in (
        "double: the kernel needs a GPU that Triton has a driver for",
        "double: the kernel needs Triton",
    )
