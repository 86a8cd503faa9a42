"""Runs ops with kernels of each kind in programs that AOTInductor compiles, and builds what later stages need.

Each probe prints how far it has come, so that the end of a crash shows where it was.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from probes import Probe, only_on
from stage import Stage
from torch import Tensor

from custom_autograd import custom_op


@custom_op("gpu_probe::scaled_sin", reference=True)
def scaled_sin(x: Tensor, scale: float = 2.0) -> Tensor:
    """The sine times a number, in a Python kernel."""
    return torch.sin(x) * scale


class PythonKernel(torch.nn.Module):
    """A program with a Python kernel between PyTorch's own operators."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """Call the op."""
        return scaled_sin(x + 1) * weight


class Plain(torch.nn.Module):
    """A program of PyTorch's own operators: if it fails, the fault is not in an op of ours."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """Call none of our ops."""
        return torch.sin(x + 1) * weight


class RmsNorm(torch.nn.Module):
    """A program with an op of the gallery: C++ on a CPU, Triton on a GPU."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """Call the op."""
        return torch.ops.gallery.rms_norm(x + 1, weight, 1e-6)[0] * 2


def has_own_runtime(compiler: str) -> bool:
    """Return True if a compiler links libstdc++ into each library, as some CUDA images set in CXX.

    AOTInductor compiles programs with CXX. Loading such a program ends the process, also without custom ops.
    """
    source = '#include <stdexcept>\nvoid raise() { throw std::runtime_error("x"); }'
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "library.so"
        command = [*shlex.split(compiler), "-x", "c++", "-shared", "-fPIC", "-o", str(library), "-"]
        subprocess.run(command, input=source, text=True, check=True)
        return b"libstdc++.so" not in library.read_bytes()


def use_compiler_of_torch() -> str:
    """Let Inductor compile with a compiler that shares libstdc++ with torch: CXX, or else c++; return it."""
    import torch._inductor.config

    compiler = os.environ.get("CXX", "c++")
    if has_own_runtime(compiler):
        compiler = os.environ["CXX"] = "c++"
        torch._inductor.config.cpp.cxx = (None, compiler)
    return compiler


def control(stage: Stage) -> dict[str, Any]:
    """Export a program without ops of ours, compiled with CXX as it is."""
    compiler = os.environ.get("CXX", "c++")
    print(f"CXX {compiler}, links libstdc++ into libraries: {has_own_runtime(compiler)}", flush=True)
    return run_exported(Plain(), "cpu")


def exported(model: torch.nn.Module, device: str) -> dict[str, Any]:
    """Export a program with a compiler that shares libstdc++ with torch."""
    return {"compiler": use_compiler_of_torch(), **run_exported(model, device)}


def run_exported(model: torch.nn.Module, device: str) -> dict[str, Any]:
    """Export, compile, load and run a program; raise if it computes something else."""
    import rms_norm  # noqa: F401 - it declares the op

    x, weight = torch.randn(8, 64, device=device), torch.rand(64, device=device) + 0.5
    expected = model(x, weight)
    print("called", flush=True)
    program = torch.export.export(model, (x, weight))
    print("exported", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = torch._inductor.aoti_compile_and_package(program, package_path=str(Path(folder) / "model.pt2"))
        print("compiled", flush=True)
        compiled = torch._inductor.aoti_load_package(path)
        print("loaded", flush=True)
        found = compiled(x, weight)
        print("ran", flush=True)
        torch.testing.assert_close(found, expected)
        again = compiled(2 * x, weight)
        torch.testing.assert_close(again, model(2 * x, weight))
    return {"equal": True}


def cuda_cpp_kernel(stage: Stage) -> dict[str, Any]:
    """Export the op with its kernel in CUDA C++."""
    from rms_norm import rms_norm

    with rms_norm.use_kernel("cuda_cpp"):
        return exported(RmsNorm(), stage.device)


def peers_of_calls(stage: Stage) -> dict[str, Any]:
    """Build the C++ ops that the stage `calls` measures, so that its time goes into measuring."""
    import peers

    reasons = {"C++": peers.cpp()[1], "C++ kernel": peers.in_cpp()[2]}
    if stage.device.startswith("cuda"):
        reasons["CUDA C++ kernel"] = peers.in_cuda()[2]
    return reasons


PROBES: dict[str, Probe] = {
    "PyTorch alone on the CPU, compiled with CXX": control,
    "Python kernel on the device": lambda stage: exported(PythonKernel(), stage.device),
    "gallery's kernel on the device": lambda stage: exported(RmsNorm(), stage.device),
    "C++ kernel on the CPU": lambda _: exported(RmsNorm(), "cpu"),
    "Python kernel on the CPU": lambda _: exported(PythonKernel(), "cpu"),
    "CUDA C++ kernel": only_on("cuda", cuda_cpp_kernel),
    "C++ ops of the stage calls": peers_of_calls,
}
