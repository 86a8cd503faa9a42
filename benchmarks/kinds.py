"""Ops of other kinds than x * y, in every way to declare them, and one op that is called with two kinds of tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peers
import torch
from groups import MODES, Call, Cases, modes_of, pair
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.kernels import cpp_kernel

KINDS = ("hidden and integer", "two outputs", "optional and list", "writing", "two kinds in turns")
IN_CPP = ", C++ kernel"  # ours, with a kernel of build_sources/kinds_kernels.cpp
ALONE = "kernel alone "  # the Python function, without an op around it
SOURCE = Path(__file__).with_name("build_sources") / "kinds_kernels.cpp"


# Each kernel is one operation of PyTorch, as x * y is: what is measured is the call, and not how long Python or C++
# takes to call the operations of a kernel.
def hidden(name: str) -> tuple[Any, Any]:
    """A hidden output that the backward reads, and an input of integers; torch.library returns the output."""

    def kernel(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        return torch.frexp(x)

    def save_exponent(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output[1])
        ctx.mark_non_differentiable(output[1])

    schema = "(Tensor x, Tensor index) -> (Tensor out, Tensor exponent)"
    ours = custom_op(name, kernel, schema=schema, hidden=("exponent",), replace=True)
    ours.register_backward(lambda grad_out, exponent: {"x": torch.ldexp(grad_out, -exponent)})
    theirs = torch.library.custom_op(f"{name}_library", kernel, mutates_args=(), schema=schema)
    theirs.register_autograd(
        lambda ctx, grad, _: (torch.ldexp(grad, -ctx.saved_tensors[0]), None), setup_context=save_exponent
    )
    return ours, theirs


def two_outputs(name: str) -> tuple[Any, Any]:
    """The least and the greatest number, of which the gradient of the first arrives."""

    def kernel(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.aminmax(x)

    schema = "(Tensor x, Tensor y) -> (Tensor least, Tensor greatest)"
    ours = custom_op(name, kernel, schema=schema, replace=True)
    ours.register_backward(lambda grad_least, x, y, grad_greatest=None: (grad_least * y, grad_least * x))
    theirs = torch.library.custom_op(f"{name}_library", kernel, mutates_args=(), schema=schema)
    theirs.register_autograd(lambda ctx, grad, _: peers.backward(ctx, grad), setup_context=peers.save)
    return ours, theirs


def writing(name: str) -> tuple[Any, Any]:
    """An op that adds to its input."""

    def kernel(x: Tensor, y: Tensor) -> None:
        x.add_(y)

    schema = "(Tensor(a!) x, Tensor y) -> ()"
    ours = custom_op(name, kernel, schema=schema, mutates_args=("x",), replace=True)
    return ours, torch.library.custom_op(f"{name}_library", kernel, mutates_args=("x",), schema=schema)


def optional_and_list(name: str) -> tuple[Any, Any]:
    """A list of two tensors, and an optional tensor that is given."""

    def kernel(xs: list[Tensor], bias: Tensor | None = None) -> Tensor:
        return xs[0] * xs[1] if bias is None else torch.addcmul(bias, xs[0], xs[1])

    def save_all(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[0])

    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return [grad * y, grad * x], grad * 1

    schema = "(Tensor[] xs, Tensor? bias=None) -> Tensor"
    ours = custom_op(name, kernel, schema=schema, replace=True)
    ours.register_backward(lambda grad, xs: {"xs": [grad * xs[1], grad * xs[0]], "bias": grad * 1})
    theirs = torch.library.custom_op(f"{name}_library", kernel, mutates_args=(), schema=schema)
    theirs.register_autograd(backward, setup_context=save_all)
    return ours, theirs


def with_index(grad: bool) -> tuple[Any, ...]:
    """A tensor, and one of integers."""
    return torch.rand(8, requires_grad=grad), torch.arange(8)


def with_list(grad: bool) -> tuple[Any, ...]:
    """A list of two tensors, and a third."""
    x, y, bias = (torch.rand(8, requires_grad=grad) for _ in range(3))
    return [x, y], bias


def kinds_group(missing: dict[str, str]) -> Cases:
    """Ours with a kernel in Python and in C++, torch.library's, and C++ ops, of each kind."""
    in_cpp, reason = peers.cpp_kinds()
    if in_cpp is None:
        missing["C++ of other kinds"] = reason
    kinds = {
        "hidden and integer": (hidden, with_index),
        "two outputs": (two_outputs, pair()),
        "optional and list": (optional_and_list, with_list),
        "writing": (writing, pair()),
    }
    cases: Cases = {}
    for kind, (declare, make) in kinds.items():
        name = declare.__name__
        ours, theirs = declare(f"bench::{name}")
        found = {kind: ours, f"torch.library {kind}": theirs, f"C++ {kind}": in_cpp and getattr(in_cpp, name)}
        kernel = cpp_kernel(SOURCE, name)
        try:
            kernel.load()
            found[f"{kind}{IN_CPP}"] = declare(f"bench::{name}_cpp_kernel")[0]
            found[f"{kind}{IN_CPP}"].register_kernel("cpu")(kernel)
        except KernelUnavailable as error:
            missing[f"{kind}{IN_CPP}"] = str(error).splitlines()[0]
        modes = ("no grad",) if kind == "writing" else MODES  # what is written to requires no gradient here
        for case, op in found.items():
            cases |= {} if op is None else modes_of(case, op, make, modes)
        cases |= modes_of(f"{ALONE}{kind}", ours.__wrapped__, make, ("no grad",))
    return cases | turns_group()


def turns_group() -> Cases:
    """Vectors and matrices in turns."""
    multiply, _ = peers.cpp()
    with_kernel, _, _ = peers.in_cpp()
    kind = KINDS[-1]
    found = {
        kind: peers.by_name(),
        f"torch.library {kind}": peers.torch_library(),
        f"C++ {kind}": multiply,
        f"{kind}{IN_CPP}": with_kernel,
    }
    cases: Cases = {}
    for case, op in found.items():
        cases |= {} if op is None else in_turns(case, op)
    return cases


def in_turns(name: str, op: Call) -> Cases:
    """The cases of an op that is called with vectors and matrices in turns: the time of one call is half of each."""

    def make(grad: bool) -> tuple[Any, ...]:
        return tuple(torch.rand(shape, requires_grad=grad) for shape in ((8,), (8,), (2, 4), (2, 4)))

    def both(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        return op(a, b), op(c, d)

    grads = torch.ones(8), torch.ones(2, 4)
    plain, recorded = make(False), make(True)
    works = (
        lambda: both(*plain),
        lambda: both(*recorded),
        lambda: torch.autograd.backward(both(*recorded), grads),
    )
    return {f"{name} | {mode}": work for mode, work in zip(MODES, works, strict=True)}
