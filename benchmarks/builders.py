"""The ways to build a C++ kernel at run time that benchmarks/build_times.py compares, behind one signature."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SOURCES = Path(__file__).parent / "build_sources"
Into = Callable[[Tensor, Tensor], Any]
Made = Callable[[Tensor], Tensor]


def ours(folder: Path) -> tuple[Into, Made]:
    """`custom_autograd.kernels.cpp_kernel`: one compiler call on the stable ABI."""
    os.environ["CUSTOM_AUTOGRAD_CACHE"] = str(folder)
    kernels = importlib.import_module("custom_autograd.kernels")
    source = SOURCES / "stable.cpp"
    return kernels.cpp_kernel(source, "times_into"), kernels.cpp_kernel(source, "times")


def extension_stable(folder: Path) -> tuple[Into, Made]:
    """`torch.utils.cpp_extension.load` on the same source."""
    cpp_extension = importlib.import_module("torch.utils.cpp_extension")
    cpp_extension.load(
        "times_stable",
        str(SOURCES / "stable.cpp"),
        extra_cflags=["-O3", "-march=native", "-std=c++20", "-DKERNEL_NAMESPACE=times_stable"],
        build_directory=str(folder),
        is_python_module=False,
    )
    return torch.ops.times_stable.times_into.default, torch.ops.times_stable.times.default


def extension_pybind(folder: Path) -> tuple[Into, Made]:
    """`torch.utils.cpp_extension.load` with torch's C++ classes and pybind11."""
    cpp_extension = importlib.import_module("torch.utils.cpp_extension")
    flags = ["-O3", "-march=native"]
    source = str(SOURCES / "pybind.cpp")
    module = cpp_extension.load("times_pybind", source, extra_cflags=flags, build_directory=str(folder))
    return module.times_into, module.times


def tvm_ffi(folder: Path) -> tuple[Into, Made]:
    """`tvm_ffi.cpp.load`, which writes into what Python allocates."""
    cpp = importlib.import_module("tvm_ffi.cpp")
    source = str(SOURCES / "tvm_ffi.cpp")
    flags = ["-O3", "-march=native"]
    module = cpp.load("times_tvm_ffi", cpp_files=source, extra_cflags=flags, build_directory=str(folder))
    into = module.times_into

    def times(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        into(x, out)
        return out

    return into, times


BUILDERS: dict[str, Callable[[Path], tuple[Into, Made]]] = {
    "cpp_kernel": ours,
    "cpp_extension, stable ABI": extension_stable,
    "cpp_extension, pybind11": extension_pybind,
    "tvm-ffi": tvm_ffi,
}
