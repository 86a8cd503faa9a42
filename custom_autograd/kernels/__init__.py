"""Kernels in another language than Python: built on first use, kept, and replaced where they cannot be built."""

from custom_autograd.core.errors import KernelUnavailable, KernelWarning
from custom_autograd.kernels.cpp import CppKernel, cpp_kernel
from custom_autograd.kernels.triton import TritonKernel, tl, triton_kernel

__all__ = ["CppKernel", "KernelUnavailable", "KernelWarning", "TritonKernel", "cpp_kernel", "tl", "triton_kernel"]
