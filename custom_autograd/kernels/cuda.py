"""A function of a CUDA C++ source file as a Python callable: built with nvcc at its first call on a GPU."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.kernels.compilers import PLATFORM, SEARCHED, TORCH, CppCompiler, leading_programs, words_of
from custom_autograd.kernels.cpp import CppKernel
from custom_autograd.kernels.launches import unavailable
from custom_autograd.kernels.native_kernels import NativeOperator
from custom_autograd.kernels.shared_library import find_or_build
from custom_autograd.torch_private.dispatch import is_mutable


def cuda_kernel(
    source: str | os.PathLike[str],
    function: str,
    *,
    fallback: Callable[..., Any] | None = None,
    flags: Sequence[str] = (),
    host: Sequence[str] = (),
) -> CudaKernel:
    """Return a function that a CUDA C++ source file defines; nothing is built or loaded before the first call.

    The source includes `custom_autograd/cuda.h`, launches on `current_stream(x)`, calls `check_launch()` afterwards,
    and registers its functions as C++ does, for CUDA: `STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CUDA, m)`.

    It is compiled for the devices that are there, or for those that TORCH_CUDA_ARCH_LIST names.

    Args:
        source: the .cu file. It is compiled alone, against torch's stable ABI.
        function: the name under which the source registers the function.
        fallback: what runs instead where there is no nvcc or it refuses the source, with the same arguments. Without
            one the call raises.
        flags: further flags for nvcc, one word each.
        host: arguments that may be on the CPU while the other tensors are on a GPU, such as offsets.

    Returns:
        The callable, fit for the body of a kernel registered with `op.register_kernel("cuda")`.

    Raises:
        KernelError: the flags or the arguments are a single text.

    Example:
        >>> kernel = cuda_kernel("no/such/file.cu", "double", fallback=lambda x: x + x)
        >>> kernel.source.name
        'file.cu'
    """
    return CudaKernel(source, function, fallback, flags, host)


class CudaKernel(CppKernel):
    """A function of a CUDA C++ source file; see `cuda_kernel`."""

    _language = "cuda"

    def build(self) -> tuple[str, Path]:
        """Return the namespace in which the source registers, and the library, built if need be; needs no GPU.

        Raises:
            KernelUnavailable: there is no nvcc, it refuses the source, or the cache cannot be written.
        """
        return find_or_build(self.source, self.flags, CudaCompiler())

    def load(self) -> Callable[..., Any]:
        """Return the function itself, built and loaded if need be.

        Raises:
            KernelUnavailable: as `build`; or there is no GPU that torch can use.
        """
        if torch.version.cuda is None or not torch.cuda.is_available():
            found = f"torch {torch.__version__}, torch.cuda.is_available() is {torch.cuda.is_available()}"
            problem = "the kernel needs an NVIDIA GPU"
            do = "call it with CUDA tensors where there is one, or register another kernel for this device"
            raise KernelUnavailable(self.source.name, problem, found=found, do=do)
        return super().load()

    def _served(self, function: Callable[..., Any], operator: NativeOperator) -> Callable[..., Any]:
        """Return what serves calls until one returns, or the GPU refuses to run the code."""

        def first_launch(*args: Any, **kwargs: Any) -> Any:
            try:
                result = function(*args, **kwargs)
            except RuntimeError as error:
                reason = unavailable(self.source.name, error)
                if reason is None:
                    raise
            else:
                self._call = function
                self._offer(operator)
                return result
            return self._refused(reason, operator)(*args, **kwargs)

        return first_launch

    def _refused(self, reason: KernelUnavailable, operator: NativeOperator) -> Callable[..., Any]:
        """Return the fallback, or raise the reason if there is none or it would compute with what was written."""
        with self._lock:  # threads that make the first call at the same time warn once
            is_known = self.is_replaced
            self._call = self._without(reason)
        if self.fallback is None or (reason.is_late and is_mutable(operator.name)):
            raise reason
        if not is_known:
            self._warn(reason)
        return self.fallback


class CudaCompiler(CppCompiler):
    """NVIDIA's compiler: NVCC, else that of CUDA_HOME or CUDA_PATH, else nvcc."""

    standard = "use the nvcc of CUDA 12 or later, with a host compiler that it supports (CXX)"

    def targets(self) -> list[str]:
        """Return the platform with torch's version of CUDA, and with older ones, whose libraries run there too."""
        newest = int((torch.version.cuda or "0").partition(".")[0])
        return [f"{PLATFORM}-cuda{major}" for major in range(newest, 0, -1)]

    def fingerprint(self) -> str:
        """Return the flags, the environment and the devices that are there."""
        variables = ("NVCC", "CUDA_HOME", "CUDA_PATH", "CXX", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", *SEARCHED)
        devices = os.environ.get("TORCH_CUDA_ARCH_LIST") or capabilities()
        return repr((CUDA_FLAGS, [os.environ.get(name) for name in variables], devices, torch.version.cuda))

    def find(self, source: Path, *, do: str = "") -> list[str]:
        """Return the command of nvcc; raise with what to do if there is none."""
        home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
        wanted = os.environ.get("NVCC") or (str(Path(home, "bin", "nvcc")) if home else "nvcc")
        words = words_of(wanted, "NVCC", source)
        if os.name == "posix" and words and shutil.which(words[0]):
            return words
        raise KernelUnavailable(
            source.name,
            "no CUDA compiler for the kernel",
            expected="nvcc of CUDA 12 or later, on Linux",
            found=f"'{wanted}', which is not there",
            do=do or "install the CUDA toolkit, or set NVCC or CUDA_HOME, or register another kernel for the device",
        )

    def programs(self, source: Path) -> list[str]:
        """Return nvcc, and the compiler that it has for the host."""
        return [*leading_programs(self.find(source)), *(self._host(source) or ["gcc"])]

    def _host(self, source: Path) -> list[str]:
        return words_of(os.environ.get("CXX", ""), "CXX", source)[:1]

    def flags(self, command: Sequence[str], source: Path) -> list[str]:
        """Return flags for the devices of TORCH_CUDA_ARCH_LIST, else for those that are there, else nvcc's default."""
        return [*CUDA_FLAGS, *(f"-ccbin={word}" for word in self._host(source)), *architectures(source)]

    def as_input(self, library: str) -> str:
        """Return a shared library as a word of the command: nvcc refuses a name that ends in a number."""
        # Without the quotes nvcc would take a path with a comma or a space apart.
        return f'-Xlinker="{library}"'

    def libraries(self) -> list[str]:
        """Return what the stable ABI needs, and torch's CUDA part where torch has one."""
        has_cuda = (TORCH / "lib" / "libtorch_cuda.so").exists()
        return ["-ltorch", "-ltorch_cpu", "-lc10", *(["-ltorch_cuda"] if has_cuda else [])]


def capabilities() -> list[str]:
    """Return the compute capabilities of the devices that are there: "9.0"."""
    if not torch.cuda.is_available():
        return []
    found = {torch.cuda.get_device_capability(device) for device in range(torch.cuda.device_count())}
    return [f"{major}.{minor}" for major, minor in sorted(found)]


def architectures(source: Path) -> list[str]:
    """Return the flags for what TORCH_CUDA_ARCH_LIST names ("8.0;9.0a+PTX"), else for the devices that are there."""
    listed = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split() or capabilities()
    flags: list[str] = []
    for wanted in listed:
        match = re.fullmatch(r"(\d+)\.(\d[af]?)(\+PTX)?", wanted)
        if match is None:
            problem = "TORCH_CUDA_ARCH_LIST names no architecture"
            expected = "compute capabilities, such as '8.0;9.0a+PTX'"
            raise KernelUnavailable(source.name, problem, expected=expected, found=f"'{wanted}'")
        number = match[1] + match[2]
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if match[3]:
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


# USE_CUDA uncovers the current stream in torch's headers. The CUDA runtime is linked into the library: it need not be
# of torch's version, and shares the driver's context and streams with torch's.
CUDA_FLAGS = (
    "-std=c++20", "-O3", "-shared", "-Xcompiler=-fPIC,-fvisibility=hidden", "--expt-relaxed-constexpr", "-DUSE_CUDA",
)  # fmt: skip
