"""One op, x * y with a backward that saves both, in every way there is to tell PyTorch of it."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.kernels import cpp_kernel, cuda_kernel

Call = Callable[..., Any]
BUILD_SOURCES = Path(__file__).with_name("build_sources")

CPP = """
#include <torch/extension.h>
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor multiply(const at::Tensor& x, const at::Tensor& y) { return x * y; }

at::Tensor below(const at::Tensor& x, const at::Tensor& y) {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("bench_cpp::multiply", "")
      .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  at::AutoDispatchBelowADInplaceOrView guard;
  return op.call(x, y);
}

struct Multiply : torch::autograd::Function<Multiply> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& y) {
    ctx->save_for_backward({x, y});
    return below(x, y);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    return {grads[0] * saved[1], grads[0] * saved[0]};
  }
};

at::Tensor autograd(const at::Tensor& x, const at::Tensor& y) { return Multiply::apply(x, y); }

TORCH_LIBRARY(bench_cpp, m) { m.def("multiply(Tensor x, Tensor y) -> Tensor"); }
TORCH_LIBRARY_IMPL(bench_cpp, CPU, m) { m.impl("multiply", multiply); }
TORCH_LIBRARY_IMPL(bench_cpp, CUDA, m) { m.impl("multiply", multiply); }
TORCH_LIBRARY_IMPL(bench_cpp, Autograd, m) { m.impl("multiply", autograd); }
"""


def kernel(x: Tensor, y: Tensor) -> Tensor:
    """The op."""
    return x * y


def save(ctx: Any, inputs: Any, output: Any) -> None:
    """The setup_context of the styles that have one."""
    ctx.save_for_backward(*inputs)


def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The backward of the styles that have a ctx."""
    x, y = ctx.saved_tensors
    return grad * y, grad * x


class WithContext(torch.autograd.Function):
    """`forward(ctx, ...)`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        """Saves both."""
        ctx.save_for_backward(x, y)
        return x * y

    backward = staticmethod(backward)


class WithSetup(torch.autograd.Function):
    """`forward(...)` and `setup_context`."""

    forward = staticmethod(kernel)
    setup_context = staticmethod(save)
    backward = staticmethod(backward)


def by_name() -> Any:
    """Ours, with a rule bound by name."""
    op = custom_op("bench::by_name", kernel, replace=True)
    op.register_fake(lambda x, y: torch.empty_like(x))
    op.register_backward(lambda grad, x, y: (grad * y, grad * x))
    return op


def with_line() -> Any:
    """The same, with a line of shapes, so that each call compares sizes."""
    op = custom_op("bench::with_line", kernel, shapes="x: *b d, y: *b d -> output: *b d", replace=True)
    op.register_fake(lambda x, y: torch.empty_like(x))
    op.register_backward(lambda grad, x, y: (grad * y, grad * x))
    return op


@functools.cache
def in_cpp() -> tuple[Call | None, Call | None, str]:
    """Ours, with a C++ kernel: with a rule bound by name, and with one in C++; or why the kernel could not be built."""
    source = BUILD_SOURCES / "multiply.cpp"
    return with_kernels("cpu", *(cpp_kernel(source, name) for name in ("multiply", "multiply_backward")))


@functools.cache
def in_cuda() -> tuple[Call | None, Call | None, str]:
    """The same with kernels in CUDA C++, for tensors on a GPU."""
    source = BUILD_SOURCES / "multiply.cu"
    return with_kernels("cuda", *(cuda_kernel(source, name) for name in ("multiply", "multiply_backward")))


def with_kernels(device_type: str, forward: Any, rule: Any) -> tuple[Call | None, Call | None, str]:
    """Ours, with a kernel for a device type: with a rule bound by name, and with one in the language of the kernel."""
    try:
        forward.load()
    except KernelUnavailable as error:
        return None, None, str(error).splitlines()[0]
    names = (f"bench::{device_type}_kernel", f"bench::{device_type}_kernel_and_rule")
    ops = [custom_op(name, kernel, replace=True) for name in names]
    for op in ops:
        op.register_kernel(device_type)(forward)
        op.register_fake(lambda x, y: torch.empty_like(x))
    ops[0].register_backward(lambda grad, x, y: (grad * y, grad * x))
    ops[1].register_backward(rule)
    return ops[0], ops[1], ""


def drop_in() -> Any:
    """Ours, with the rules of `torch.library`."""
    op = custom_op("bench::drop_in", kernel, replace=True)
    op.register_fake(lambda x, y: torch.empty_like(x))
    op.register_autograd(backward, setup_context=save)
    return op


def torch_library() -> Any:
    """torch.library's own."""
    op = torch.library.custom_op("bench::torch_library", kernel, mutates_args=())
    op.register_fake(lambda x, y: torch.empty_like(x))
    op.register_autograd(backward, setup_context=save)
    return op


def raw_library(library: torch.library.Library) -> Call:
    """A raw Library op with an autograd.Function at its Autograd key."""
    library.define("raw(Tensor x, Tensor y) -> Tensor")
    op = torch.ops.bench.raw.default

    class Raw(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            with torch._C._AutoDispatchBelowAutograd():  # as torch's tutorial has it
                return op(x, y)

        backward = staticmethod(backward)

    library.impl("raw", kernel, "CPU")
    library.impl("raw", lambda x, y: Raw.apply(x, y), "Autograd")
    return op


def defined(library: torch.library.Library) -> Call:
    """What vLLM (`direct_register_custom_op`) and TensorRT-LLM (`fast_custom_op`) wrote: a kernel and no autograd."""
    library.define("defined(Tensor x, Tensor y) -> Tensor")
    library.impl("defined", kernel, "CPU")
    return torch.ops.bench.defined.default


def function_outside(op: Call) -> Call:
    """A Function around such an op, as attention-gym has it."""

    class Outside(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return op(x, y)

        backward = staticmethod(backward)

    return Outside.apply


def triton_op() -> tuple[Call | None, str]:
    """torch.library's op for Triton kernels; a function of PyTorch operations here, since a CPU runs no Triton."""
    try:
        op = torch.library.triton_op("bench::triton_op", mutates_args={})(kernel)
        op.register_autograd(backward, setup_context=save)
    except (ImportError, RuntimeError) as error:
        return None, str(error).splitlines()[0]
    return op, ""


def cpp() -> tuple[Call | None, str]:
    """The op in C++, with C++ autograd, called through torch.ops; or the reason why it could not be built."""
    if shutil.which("c++") is None or shutil.which("ninja") is None:
        return None, "no C++ compiler or no ninja was found"
    from torch.utils.cpp_extension import load_inline

    load_inline("bench_cpp_multiply", cpp_sources=CPP, is_python_module=False, extra_cflags=["-O2"])
    torch.library.register_fake("bench_cpp::multiply", lambda x, y: torch.empty_like(x), allow_override=True)
    return torch.ops.bench_cpp.multiply, ""


def cpp_kinds() -> tuple[Any, str]:
    """The namespace of the ops of build_sources/kinds.cpp, or None and the reason why they could not be built."""
    if shutil.which("c++") is None or shutil.which("ninja") is None:
        return None, "no C++ compiler or no ninja was found"
    from torch.utils.cpp_extension import load

    source = str(BUILD_SOURCES / "kinds.cpp")
    load("bench_kinds", sources=[source], is_python_module=False, extra_cflags=["-O2"])
    return torch.ops.bench_kinds, ""
