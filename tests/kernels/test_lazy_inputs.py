"""Kernels find the values of a tensor in its memory on every way to them: no view is lazily negated or conjugated."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tables import each
from torch import Tensor
from torch.autograd import forward_ad, grad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from custom_autograd import Sample, check, custom_op
from custom_autograd.kernels import cpp_kernel, numba_kernel, numpy_kernel, tl, triton_kernel

SOURCE = """
#include <custom_autograd/kernel.h>

using namespace custom_autograd;

Tensor twice(const Tensor& x) {
  Tensor out = allocate(x, x.sizes());
  const double* in = read<double>(x);
  int64_t step = x.dim() == 2 ? x.stride(0) : 1;  // zeros that are made of a zero tensor are expanded
  for (int64_t i = 0; i < x.numel(); ++i) write<double>(out)[i] = 2 * in[i * step];
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) { m.def("twice(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("twice", TORCH_BOX(&twice)); }
"""
VALUES = torch.tensor([[1.0], [-2.0], [3.0]], dtype=torch.float64)
COMPLEX = VALUES + 1j


def memory_of(x: Tensor) -> Tensor:
    """What lies in the memory of a tensor, whatever is to be done to it."""
    assert not x._is_zerotensor()
    memory = torch.empty(0, dtype=x.dtype)
    return memory.set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride()).clone()


def python_twice(x):
    return memory_of(x) * 2


@numpy_kernel
def numpy_twice(x):
    return 2 * x


@numba_kernel
def numba_twice(x):
    out = np.empty(x.shape, x.dtype)
    out[:] = 2 * x
    return out


@triton_kernel
def double_block(x, out, size: tl.constexpr) -> None:
    place = tl.arange(0, size)
    inside = place < 3
    tl.store(out + place, 2 * tl.load(x + place, mask=inside), mask=inside)


def triton_twice(x):
    out = x.new_empty(x.shape)
    double_block[(1,)](x, out, size=4)
    return out


NEEDS_COMPILER = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
NEEDS_NUMBA = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="Numba is not installed")
NEEDS_INTERPRETER = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or torch.cuda.is_available(), reason="Triton is missing, or compiles"
)
KINDS = [
    pytest.param("python", python_twice, None, id="Python"),
    pytest.param("layouts", python_twice, "contiguous", id="layouts"),
    pytest.param("numpy", numpy_twice, None, id="NumPy"),
    pytest.param("numba", numba_twice, None, id="Numba", marks=[NEEDS_NUMBA, pytest.mark.slow]),
    pytest.param("cpp", None, "contiguous", id="C++", marks=[NEEDS_COMPILER, pytest.mark.slow]),
    pytest.param("address", None, None, id="C++ by address", marks=NEEDS_COMPILER),
    pytest.param("triton", triton_twice, "contiguous", id="Triton", marks=NEEDS_INTERPRETER),
]


@pytest.fixture(scope="module")
def cpp_twice(tmp_path_factory):
    path = Path(tmp_path_factory.mktemp("source")) / "twice.cpp"
    path.write_text(SOURCE, encoding="utf-8")
    return cpp_kernel(path, "twice")


def op_of(name, function, layouts):
    """An op that doubles; its rules call it too."""
    op = custom_op(f"lazy_inputs::{name}", torch.empty_like, schema="(Tensor x) -> Tensor", replace=True)
    op.register_kernel("cpu", function, layouts=layouts)
    op.register_fake(lambda x: x.new_empty(x.shape))
    op.register_backward(lambda grad: op(grad))
    op.register_jvp(lambda tangent_x: op(tangent_x))
    return op


def negated(x: Tensor) -> Tensor:
    """The same values as a lazily negated view, without gaps where there is one element in a row."""
    view = torch._neg_view((-x).contiguous())
    assert view.is_neg()
    return view


def conjugated(x: Tensor) -> Tensor:
    view = x.conj().resolve_conj().conj()
    assert view.is_conj()
    return view


def zero() -> Tensor:
    return torch._efficientzerotensor(VALUES.shape, dtype=torch.float64)


def leaf() -> Tensor:
    return VALUES.clone().requires_grad_()


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def within(context, op):
    with context:
        return op(negated(VALUES))


def tangent(op, given):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(op(forward_ad.make_dual(VALUES.clone(), given))).tangent


def second_backward(op):
    cotangent = negated(VALUES).requires_grad_()
    x = leaf()
    (first,) = grad(op(x), x, cotangent, create_graph=True)
    return grad(first, cotangent, negated(VALUES))[0]


def of_leaf(function, cotangent):
    x = leaf()
    return grad(function(x), x, cotangent)[0]


def compiled(function, *args):
    torch.compiler.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=True)(*args)


ROADS = {
    "call": lambda op: op(negated(VALUES)),
    "call that records": lambda op: op(negated(leaf())).detach(),
    "torch.ops": lambda op: op.overload(negated(VALUES)),
    "torch.ops that records": lambda op: op.overload(negated(leaf())).detach(),
    "no_grad": lambda op: within(torch.no_grad(), op),
    "inference mode": lambda op: within(torch.inference_mode(), op),
    "autocast": lambda op: within(torch.autocast("cpu"), op),
    "dispatch mode": lambda op: within(DispatchMode(), op),
    "function mode": lambda op: within(FunctionMode(), op),
    "below autograd": lambda op: within(torch._C._AutoDispatchBelowAutograd(), op),
    "Parameter": lambda op: op(torch.nn.Parameter(negated(VALUES))).detach(),
    "forced kernel": lambda op: within(op.use_kernel("cpu"), op),
    "cotangent": lambda op: of_leaf(op, negated(VALUES)),
    "cotangent by torch.ops": lambda op: of_leaf(op.overload, negated(VALUES)),
    "cotangent through a view": lambda op: of_leaf(lambda x: op(negated_view(x)), negated(VALUES)),
    "second backward": second_backward,
    "tangent": lambda op: tangent(op, negated(VALUES)),
    "zero tangent": lambda op: tangent(op, zero()) + 2 * VALUES,
    "zero argument": lambda op: op(zero()) + 2 * VALUES,
    "zero cotangent": lambda op: of_leaf(op, zero()) + 2 * VALUES,
    "func.jvp": lambda op: torch.func.jvp(op, (VALUES,), (negated(VALUES),))[1],
    "func.vjp": lambda op: torch.func.vjp(op, VALUES)[1](negated(VALUES))[0],
    "vmap": lambda op: torch.vmap(op)(negated(VALUES)),
    "functionalize": lambda op: torch.func.functionalize(op)(negated(VALUES)),
    "call from a kernel": lambda op: outer_of(op)(VALUES),
}
GRAPHS = {
    "compiled": lambda op: compiled(lambda x: op(negated_view(x)), VALUES),
    "argument of compiled code": lambda op: compiled(op, negated(VALUES)),
    "cotangent of compiled code": lambda op: of_leaf(lambda x: compiled(op, x), negated(VALUES)),
}


def negated_view(x: Tensor) -> Tensor:
    """A lazily negated view of the memory of its negation: `negated` within what is differentiated or traced."""
    return torch._neg_view(-x)


def outer_of(op):
    """An op whose kernel calls another op with a view."""
    outer = custom_op("lazy_inputs::outer", lambda x: op(negated(x)), schema="(Tensor x) -> Tensor", replace=True)
    outer.register_fake(torch.empty_like)
    return outer


@pytest.mark.usefixtures("both_calls", "fresh_compiler")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, which computes what a mask of Triton's hides
@pytest.mark.parametrize(("name", "function", "layouts"), KINDS)
@each(
    ("road", "times"),
    [*((road, 3) for road in ROADS.values()), *((road, 1) for road in GRAPHS.values())],
    ids=[*ROADS, *GRAPHS],
)
def test_a_kernel_sees_the_values_of_a_view(cpp_twice, name, function, layouts, road, times):
    op, expected = op_of(name, function or cpp_twice, layouts), 2 * VALUES

    for _ in range(times):  # the first call of a kind, the one that is learnt from it, and a native one
        torch.testing.assert_close(road(op).resolve_neg(), expected, rtol=0, atol=0)


@pytest.mark.usefixtures("both_calls")
@pytest.mark.parametrize("function", [python_twice, numpy_twice], ids=["Python", "NumPy"])
def test_a_kernel_sees_the_values_of_a_conjugate(function):
    op = custom_op("lazy_inputs::conjugate", function, schema="(Tensor x) -> Tensor", replace=True)
    op.register_backward(lambda grad: op(grad))
    x = COMPLEX.clone().requires_grad_()

    for _ in range(3):
        torch.testing.assert_close(op(conjugated(COMPLEX)), 2 * COMPLEX)
        torch.testing.assert_close(op.overload(conjugated(COMPLEX)), 2 * COMPLEX)
        torch.testing.assert_close(grad(op(x), x, conjugated(COMPLEX))[0], 2 * COMPLEX)


@pytest.mark.usefixtures("both_calls")
def test_tensors_of_a_list_are_seen_by_their_values():
    op = custom_op(
        "lazy_inputs::sum", lambda xs: sum(map(memory_of, xs)), schema="(Tensor[] xs) -> Tensor", replace=True
    )

    for _ in range(3):
        torch.testing.assert_close(op([negated(VALUES), VALUES]), 2 * VALUES)


def test_the_check_of_kernels_calls_each_as_the_dispatcher_does():
    """Of two kernels of a device it calls each by itself, with views of every kind."""
    op = custom_op("lazy_inputs::two", reference=True, schema="(Tensor x) -> Tensor", replace=True)(lambda x: 2 * x)
    op.register_kernel("cpu", python_twice, name="memory", layouts="contiguous")
    op.register_kernel("cpu", lambda x: 2 * x, name="other")

    (result,) = check(op, [Sample(VALUES[:1])], checks="kernels").results

    assert ("passed", "") == (result.status, result.message)
