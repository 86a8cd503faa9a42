"""Tries whether kernels build here, compute what they should, and raise exceptions that arrive in Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Any

import torch
from probes import Probe, only_on
from stage import Stage

from custom_autograd.benchmarking.machine import describe_machine


def output_of(*command: str) -> str:
    """Return what a program prints, or why it does not run."""
    if shutil.which(command[0]) is None:
        return "not installed"
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return (ended.stdout + ended.stderr).strip()


def machine(stage: Stage) -> dict[str, Any]:
    """Return what the machine is, as far as results depend on it."""
    names = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_HOME")
    query = (
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total,clocks.sm,power.limit",
        "--format=csv,noheader",
    )
    try:
        import triton
    except ImportError:
        triton = None
    return {
        **describe_machine(),
        "cuda": torch.version.cuda,
        "triton": triton and triton.__version__,
        "gpu and driver": output_of(*query),
        "c++": output_of("c++", "--version").partition("\n")[0],
        "CXX": output_of(*os.environ.get("CXX", "c++").split(), "--version").partition("\n")[0],
        "nvcc": output_of("nvcc", "--version").rpartition("\n")[2],
        "environment": {name: os.environ[name] for name in names if name in os.environ},
    }


def native(stage: Stage) -> dict[str, Any]:
    """Build the library of native calls."""
    ended = subprocess.run(
        [sys.executable, "-m", "custom_autograd", "native", "--build"], capture_output=True, text=True, check=False
    )
    return {"status": ended.returncode, "said": (ended.stdout + ended.stderr).strip().splitlines()[-12:]}


def matches(found: torch.Tensor, expected: torch.Tensor) -> dict[str, Any]:
    """Return how far two tensors are apart, of the largest value; raise if that is too far."""
    distance = ((found - expected).abs().max() / expected.abs().max()).item()
    assert distance < 1e-5, distance  # not for NaN
    return {"distance": distance}


def sizes(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows and a weight."""
    return torch.randn(64, 256, device=device), torch.randn(256, device=device)


def cpp_kernel(stage: Stage) -> dict[str, Any]:
    """Build a C++ kernel, and compare it with its reference."""
    from rms_norm import rms_norm

    x, weight = sizes("cpu")
    with rms_norm.use_kernel("cpp"):
        return matches(rms_norm(x, weight), torch.nn.functional.rms_norm(x, (256,), weight, 1e-6))


def caught(call: Any, *arguments: Any) -> dict[str, Any]:
    """Return the exception that a call raises."""
    try:
        call(*arguments)
    except Exception as error:  # noqa: BLE001 - that one arrives is what is looked at
        return {"arrives": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
    raise AssertionError("no exception was raised")


def exception_of_torch(stage: Stage) -> dict[str, Any]:
    """Let an operator of torch raise, for comparison."""
    return caught(torch.mm, torch.ones(2, 3), torch.ones(2, 3))


def exception_by_call(stage: Stage) -> dict[str, Any]:
    """Let a C++ kernel raise in a call of the op: a label out of range."""
    from softmax_cross_entropy import softmax_cross_entropy

    return caught(softmax_cross_entropy, torch.randn(2, 3), torch.tensor([0, 7]))


def exception_by_torch_ops(stage: Stage) -> dict[str, Any]:
    """Let a C++ kernel raise in a call through torch.ops."""
    import softmax_cross_entropy  # noqa: F401 - it declares the op

    return caught(torch.ops.gallery.softmax_cross_entropy, torch.randn(2, 3), torch.tensor([0, 7]))


def exception_of_first_call(stage: Stage) -> dict[str, Any]:
    """Let a C++ kernel raise when it is called without an op."""
    from softmax_cross_entropy import forward_cpp

    return caught(forward_cpp, torch.randn(2, 3), torch.tensor([0, 7]), -100, 0)


def compared_rms_norm(stage: Stage, kernel: str) -> dict[str, Any]:
    """Compare a kernel of rms_norm on the device with PyTorch's own."""
    from rms_norm import rms_norm

    x, weight = sizes(stage.device)
    with rms_norm.use_kernel(kernel):
        return matches(rms_norm(x, weight), torch.nn.functional.rms_norm(x, (256,), weight, 1e-6))


def exception_of_cuda(stage: Stage) -> dict[str, Any]:
    """Let a kernel in CUDA C++ raise: a weight of another size."""
    from rms_norm import rms_norm_cu

    return caught(rms_norm_cu, torch.randn(4, 8, device=stage.device), torch.randn(7, device=stage.device), 1e-6)


PROBES: dict[str, Probe] = {
    "machine": machine,
    "native calls": native,
    "exception of torch": exception_of_torch,
    "C++ kernel": cpp_kernel,
    "exception of a C++ kernel, by a call": exception_by_call,
    "exception of a C++ kernel, by torch.ops": exception_by_torch_ops,
    "exception of a C++ kernel, without an op": exception_of_first_call,
    "Triton kernel": only_on("cuda", lambda stage: compared_rms_norm(stage, "triton")),
    "CUDA C++ kernel": only_on("cuda", lambda stage: compared_rms_norm(stage, "cuda_cpp")),
    "exception of a CUDA C++ kernel": only_on("cuda", exception_of_cuda),
}
