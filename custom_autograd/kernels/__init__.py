"""Kernels in another language than Python: built on first use, kept, and replaced where they cannot be built."""

from typing import TYPE_CHECKING

from custom_autograd.core.errors import KernelUnavailable, KernelWarning
from custom_autograd.core.lazy import loader_of

if TYPE_CHECKING:
    from custom_autograd.kernels.cpp import CppKernel, cpp_kernel
    from custom_autograd.kernels.cuda import CudaKernel, cuda_kernel
    from custom_autograd.kernels.numba import NumbaKernel, numba_kernel
    from custom_autograd.kernels.numpy import NumpyKernel, numpy_kernel
    from custom_autograd.kernels.triton import TritonKernel, tl, triton_kernel

__all__ = [
    "CppKernel",
    "CudaKernel",
    "KernelUnavailable",
    "KernelWarning",
    "NumbaKernel",
    "NumpyKernel",
    "TritonKernel",
    "cpp_kernel",
    "cuda_kernel",
    "numba_kernel",
    "numpy_kernel",
    "tl",
    "triton_kernel",
]

_NAMES = {
    "cpp": "CppKernel cpp_kernel",
    "cuda": "CudaKernel cuda_kernel",
    "numba": "NumbaKernel numba_kernel",
    "numpy": "NumpyKernel numpy_kernel",
    "triton": "TritonKernel tl triton_kernel",
}
"""The public names by module, which is imported when one is first used."""

__getattr__ = loader_of(__name__, _NAMES)
