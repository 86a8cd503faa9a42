"""The selective scan of Mamba: a linear recurrence whose coefficients depend on the input.

    h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t u_t,   out_t = (C_t · h_t + D u_t) silu(z_t),    Δ = softplus(delta + delta_bias)

Each channel has a state of its own; B and C are shared by all. D, z, delta_bias, softplus and h_{-1} are optional.
Nothing but inputs is saved: the backward computes the states again, chunk by chunk, from those where chunks begin.
Dtypes: u, delta, B, C, z one of float64, float32, bfloat16, float16; last_state float64 for float64, else float32.
Source: Gu and Dao 2023, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from selective_scan_kernels import NAMES, require_inputs, scan_cpp, scan_grad_cpp, scan_triton, scanned
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("gallery::selective_scan", outputs=("out", "last_state"), reference=True)
def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    delta_softplus: bool = False,
) -> tuple[Tensor, Tensor]:
    """Runs the recurrence along the last dimension of u; returns what it gives, and the state at the end."""
    wide = require_inputs(u, delta, A, B, C, D, z, delta_bias, initial_state)
    *_, h = scanned(u, delta, A, B, delta_bias, initial_state, delta_softplus, wide)
    y = (h[:, :, 1:] * C.to(wide).transpose(1, 2).unsqueeze(1)).sum(-1)
    y = y if D is None else y + D.to(wide).unsqueeze(1) * u.to(wide)
    return (y if z is None else y * F.silu(z.to(wide))).to(u.dtype).contiguous(), h[:, :, -1].contiguous()


@selective_scan.register_shapes(dtypes={"last_state": "wide"})
def _(D):
    s = "s" if D is None else "[s]"  # the states add up, and D u is added once
    given = "D?: c, z?: b c l, delta_bias?: c, initial_state?: b c s"
    return f"u: b c [l], delta: b c l, A: c {s}, B: b s l, C: b s l, {given} -> out: b c l, last_state: b c s"


# All gradients come from one pass back in time. As an op of its own its C++ stays differentiable, by this reference.
@custom_op("gallery::selective_scan_grad", outputs=("grads",), reference=True)
def selective_scan_grad(
    out_grad: Tensor, last_state_grad: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor,
    D: Tensor | None, z: Tensor | None, delta_bias: Tensor | None, initial_state: Tensor | None, delta_softplus: bool,
) -> list[Tensor]:  # fmt: skip
    """The gradients of selective_scan with respect to those tensors that are there, in their order."""
    inputs = (u, delta, A, B, C, D, z, delta_bias, initial_state)
    wide = require_inputs(*inputs)
    raw, step, decay, h = scanned(u, delta, A, B, delta_bias, initial_state, delta_softplus, wide)
    x, y_grad, z_grad = u.to(wide), out_grad.to(wide), None
    b, c = (tensor.to(wide).transpose(1, 2).unsqueeze(1) for tensor in (B, C))
    if z is not None:
        y, gate = (h[:, :, 1:] * c).sum(-1), torch.sigmoid(z.to(wide))
        y = y if D is None else y + D.to(wide).unsqueeze(1) * x
        z_grad, y_grad = y_grad * y * gate * (1 + z * (1 - gate)), y_grad * z * gate
    h_grad, h_grads = last_state_grad.to(wide).clone(), []
    for t in reversed(range(u.shape[2])):
        h_grads.append(h_grad + y_grad[:, :, t, None] * c[:, :, t])
        h_grad = decay[:, :, t] * h_grads[-1]
    h_grads = torch.stack(h_grads[::-1], 2) if h_grads else decay
    through, term_grad = h_grads * h[:, :, :-1] * decay, (h_grads * b).sum(-1)
    raw_grad = term_grad * x + (through * A.to(wide).unsqueeze(1)).sum(-1)
    raw_grad = raw_grad * torch.where(raw > 20, 1, torch.sigmoid(raw)) if delta_softplus else raw_grad
    u_grad = term_grad * step if D is None else term_grad * step + D.to(wide).unsqueeze(1) * y_grad
    a_grad, b_grad = through * step.unsqueeze(-1), h_grads * (step * x).unsqueeze(-1)
    shared = [grad.sum(1).transpose(1, 2) for grad in (b_grad, h[:, :, 1:] * y_grad.unsqueeze(-1))]
    own = [(y_grad * x).sum((0, 2)), z_grad, raw_grad.sum((0, 2)), h_grad]
    grads = [u_grad, raw_grad, a_grad.sum((0, 2)), *shared, *own]
    present = [pair for pair in zip(grads, inputs, strict=True) if pair[1] is not None]
    return [grad.to(tensor.dtype).contiguous() for grad, tensor in present]


selective_scan_grad.register_shapes(
    "out_grad: [b c l], last_state_grad: b c [s], u: b c l, delta: b c l, A: c s, B: b s l, C: b s l, D?: c, "
    "z?: b c l, delta_bias?: c, initial_state?: b c s -> grads: ..."
)
selective_scan.register_kernel("cpu", scan_cpp, name="cpp")
selective_scan_grad.register_kernel("cpu", scan_grad_cpp, name="cpp")
selective_scan.register_kernel("cuda", scan_triton, name="triton", layouts="contiguous")


@selective_scan.register_fake
def _(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus):
    wide = require_inputs(u, delta, A, B, C, D, z, delta_bias, initial_state)
    return u.new_empty(u.shape), u.new_empty((*u.shape[:2], A.shape[1]), dtype=wide)


@selective_scan_grad.register_fake
def _(out_grad, last_state_grad, u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus):
    inputs = (u, delta, A, B, C, D, z, delta_bias, initial_state)
    return [tensor.new_empty(tensor.shape) for tensor in inputs if tensor is not None]


@selective_scan.register_backward
def _(grad_out, grad_last_state, u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus):
    inputs = (u, delta, A, B, C, D, z, delta_bias, initial_state)
    grads = selective_scan_grad(grad_out, grad_last_state, *inputs, delta_softplus)
    present = (name for name, tensor in zip(NAMES, inputs, strict=True) if tensor is not None)
    return dict(zip(present, grads, strict=True))


def make_inputs(make: Callable[..., Tensor], batch: int, channels: int, length: int, state: int) -> tuple[Tensor, ...]:
    """The inputs that every call has: steps are positive, and rates negative, so that states decay."""
    by_step, by_state = (batch, channels, length), (batch, state, length)
    rates = make(channels, state, low=-2.0, high=-0.5)
    return make(*by_step), make(*by_step, low=0.1, high=1.0), rates, make(*by_state), make(*by_state)


IN_ONE_DTYPE = ("u", "delta", "B", "C", "z")
for device_type in ("cpu", "cuda"):
    selective_scan.register_autocast(device_type, dict.fromkeys(IN_ONE_DTYPE, "promote"))


@selective_scan.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    yield Sample(*make_inputs(make, 2, 3, 4, 2))
    own = {"D": make(2), "z": make(1, 2, 3), "delta_bias": make(2), "initial_state": make(1, 2, 2)}
    yield Sample(*make_inputs(make, 1, 2, 3, 2), **own, delta_softplus=True)
    yield Sample(*make_inputs(make, 1, 2, 0, 2), initial_state=make(1, 2, 2))  # no steps: the state stays
    yield Sample(*make_inputs(make, 1, 2, 3, 2), D=make(3)).raises(ValueError, match="'D' must be .c. with c = 2")
    u, *others = make_inputs(make, 1, 2, 3, 2)
    yield Sample(u.half(), *others).raises(TypeError, match="'delta' must have the dtype of 'u'")


@selective_scan_grad.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    # Compiled, the derivatives of this op unroll the reference: the first sample, compiled for many sizes, has none.
    for one, n in ((partial(make, requires_grad=False), 1), (make, 2)):
        given = (one(1, n, 2), one(1, n, 1), *make_inputs(one, 1, n, 2, 1))
        yield Sample(*given, one(n), one(1, n, 2), one(n), None, delta_softplus=True)


if __name__ == "__main__":
    selective_scan_grad.check()
    selective_scan.check()
