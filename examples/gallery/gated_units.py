"""SwiGLU and GEGLU: an activation of one half of a projection times the other half, recomputed in the backward.

    swiglu(gate, up) = silu(gate) · up    silu(g) = g · σ(g)
    geglu(gate, up) = gelu(gate) · up     gelu(g) = g · σ(2 √(2/π) (g + 0.044715 g³)), its tanh form

Halves of one projection are not copied; what is returned is contiguous.
Dtypes: float64, float32, bfloat16, float16, of both the same; the arithmetic is float64 for float64, else float32.
Source: Shazeer 2020, "GLU Variants Improve Transformer", equation 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from launch_choices import ELEMENTWISE, launch_of
from torch import Tensor

from custom_autograd import CustomOp, Sample, custom_op
from custom_autograd.kernels import cpp_kernel, tl, triton_kernel


def checked(gate: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """The tensors; an error unless they have one dtype."""
    for name, tensor in zip(("up", "out_grad"), others, strict=False):
        if tensor.dtype != gate.dtype:
            raise ValueError(f"swiglu, geglu: '{name}' must have the dtype of 'gate', {gate.dtype}, not {tensor.dtype}")
    return gate, *others


def gated(gate: Tensor, up: Tensor, is_silu: bool) -> Tensor:
    """The formula in PyTorch operations."""
    g, u = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in checked(gate, up))
    return ((F.silu(g) if is_silu else F.gelu(g, approximate="tanh")) * u).to(gate.dtype).contiguous()


@custom_op("gallery::swiglu", outputs=("out",), reference=True, shapes="gate: *b, up: *b -> out: *b")
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up."""
    return gated(gate, up, is_silu=True)


@custom_op("gallery::geglu", outputs=("out",), reference=True, shapes="gate: *b, up: *b -> out: *b")
def geglu(gate: Tensor, up: Tensor) -> Tensor:
    """gelu(gate) · up, with gelu in its tanh form."""
    return gated(gate, up, is_silu=False)


# Both gradients need the same sigmoid and the same three inputs, so one kernel writes both.
@custom_op("gallery::gated_unit_grad", outputs=("gate_grad", "up_grad"), reference=True)
def gated_unit_grad(gate: Tensor, up: Tensor, out_grad: Tensor, is_silu: bool) -> tuple[Tensor, Tensor]:
    """The gradients of swiglu, else of geglu."""
    g, u, grad = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in checked(gate, up, out_grad))
    near = g.clamp(-32, 32)  # further out the sigmoid is 0 or 1, and the cube may overflow
    sigmoid = torch.sigmoid(g if is_silu else 1.5957691216057308 * (near + 0.044715 * near**3))
    slope = 1.0 if is_silu else 1.5957691216057308 * (1 + 0.134145 * near.square())
    gate_grad = grad * u * (sigmoid + g * sigmoid * (1 - sigmoid) * slope)
    return gate_grad.to(gate.dtype).contiguous(), (grad * g * sigmoid).to(gate.dtype).contiguous()


gated_unit_grad.register_shapes("gate: *b, up: *b, out_grad: *b -> gate_grad: *b, up_grad: *b")
SOURCE = Path(__file__).with_suffix(".cpp")
gated_cpp, gated_grad_cpp = cpp_kernel(SOURCE, "gated"), cpp_kernel(SOURCE, "gated_grad")


def rows(gate: Tensor, *others: Tensor) -> list[Tensor]:
    """Checked, and as matrices: halves of a projection stay views of it, and what has no gaps becomes one row."""
    is_flat = gate.dim() < 2 or all(t.is_contiguous() for t in (gate, *others))
    return [t.reshape(1, -1) if is_flat else t.flatten(0, -2) for t in checked(gate, *others)]


@triton_kernel
def gated_piece(gate, up, grad, out, up_grad, features, gate_row, up_row, grad_row, blocks,
                is_silu: tl.constexpr, is_backward: tl.constexpr, block: tl.constexpr) -> None:  # fmt: skip
    """One block of one row: of the output, or of both gradients (out is that of gate then)."""
    program = tl.program_id(0).to(tl.int64)  # row * features may pass 2^31
    row = program // blocks
    column = program % blocks * block + tl.arange(0, block)
    inside = column < features
    wide: tl.constexpr = tl.float64 if gate.dtype.element_ty == tl.float64 else tl.float32
    g = tl.load(gate + row * gate_row + column, mask=inside, other=0).to(wide)
    u = tl.load(up + row * up_row + column, mask=inside, other=0).to(wide)
    near = tl.minimum(tl.maximum(g, -32.0), 32.0)
    inner = g if is_silu else 1.5957691216057308 * near * (1 + 0.044715 * near * near)
    sigmoid = 1 / (1 + tl.exp(-inner))
    place = row * features + column
    if is_backward:
        incoming = tl.load(grad + row * grad_row + column, mask=inside, other=0).to(wide)
        slope = 1.0 if is_silu else 1.5957691216057308 * (1 + 0.134145 * near * near)
        gate_grad = incoming * u * (sigmoid + g * sigmoid * (1 - sigmoid) * slope)
        tl.store(out + place, gate_grad.to(out.dtype.element_ty), mask=inside)
        tl.store(up_grad + place, (incoming * g * sigmoid).to(out.dtype.element_ty), mask=inside)
    else:
        tl.store(out + place, (g * sigmoid * u).to(out.dtype.element_ty), mask=inside)


@gated_unit_grad.register_kernel("cuda", name="triton", layouts="contiguous_rows")
def launch(gate, up, out_grad, is_silu) -> tuple[Tensor, ...]:
    """Some columns of a row for each program: both gradients, or where out_grad is None the output."""
    inputs = (gate, up) if out_grad is None else (gate, up, out_grad)
    outputs = tuple(gate.new_empty(gate.shape) for _ in inputs[1:])
    (size,), warps, _ = launch_of(f"{len(inputs)} inputs of gates, {gate.element_size()} bytes", ELEMENTWISE)
    data = [*rows(*inputs), *rows(gate)][:3]  # the forward reads no gradient: any address does
    (count, features), blocks = data[0].shape, -(-data[0].shape[1] // size)
    if count * features:  # a grid of size 0 is an error
        sizes = features, *(t.stride(0) for t in data), blocks, is_silu, len(inputs) == 3, size
        gated_piece[(count * blocks,)](*data, outputs[0], outputs[-1], *sizes, num_warps=warps)
    return outputs


@gated_unit_grad.register_kernel("cpu", name="cpp", layouts="contiguous_rows")
def _(gate, up, out_grad, is_silu):
    return tuple(gradient.view(gate.shape) for gradient in gated_grad_cpp(*rows(gate, up, out_grad), is_silu))


def register(op: CustomOp, is_silu: bool) -> None:
    """All that the two units share."""
    compiled = op.register_kernel("cpu", name="cpp", layouts="contiguous_rows")
    compiled(lambda gate, up: gated_cpp(*rows(gate, up), is_silu).view(gate.shape))
    launched = op.register_kernel("cuda", name="triton", layouts="contiguous_rows")
    launched(lambda gate, up: launch(gate, up, None, is_silu)[0])

    # What is saved are the inputs: the activation is computed again.
    op.register_backward(lambda grad, gate, up: gated_unit_grad(gate, up, grad, is_silu))

    for device_type in ("cpu", "cuda"):
        op.register_autocast(device_type, "promote")  # as a product of two tensors

    @op.register_samples
    def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
        yield Sample(*make(2, 3, 16).chunk(2, -1))  # halves of one projection
        yield from (Sample(make(*shape), make(*shape)) for shape in ((4, 19), (1,), (0, 8)))  # 19: no whole vectors
        yield Sample(make(2, 8), make(8)).raises(ValueError, match="'up' must be")


register(swiglu, is_silu=True)
register(geglu, is_silu=False)


@gated_unit_grad.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    yield from (Sample(make(3, 19), make(3, 19), make(3, 19), is_silu) for is_silu in (True, False))


if __name__ == "__main__":
    for op in (gated_unit_grad, swiglu, geglu):
        op.check()
