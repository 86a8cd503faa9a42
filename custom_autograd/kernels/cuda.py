"""A function of a CUDA C++ source file as a Python callable: built with nvcc at its first call on a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.kernels.compilers import CudaCompiler
from custom_autograd.kernels.cpp import CppKernel, words
from custom_autograd.kernels.launches import FirstLaunch
from custom_autograd.kernels.native_kernels import Operator
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
    taken = words(function, flags), words(function, host, "host", "['offsets']")
    return CudaKernel(Path(source).absolute(), function, fallback, *taken)


class CudaKernel(CppKernel):
    """A function of a CUDA C++ source file; see `cuda_kernel`."""

    def __repr__(self) -> str:
        return f"cuda_kernel({str(self.source)!r}, {self.function!r})"

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

    def _served(self, function: Callable[..., Any], operator: Operator) -> Callable[..., Any]:
        def succeed() -> None:
            self._call = function
            self._offer(operator)

        def fail(reason: KernelUnavailable) -> Callable[..., Any]:
            with self._lock:  # threads that make the first call at the same time warn once
                is_known = self.is_replaced
                self._call = self._without(reason)
            if self.fallback is None or (reason.is_late and is_mutable(operator.name)):
                raise reason
            if not is_known:
                self._warn(reason)
            return self.fallback

        return FirstLaunch(self.source.name, function, succeed, fail)
