"""What selective_scan.py runs: the recurrence in PyTorch operations, in C++ with its gradients, and in Triton."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from custom_autograd.kernels import cpp_kernel, tl, triton_kernel

SOURCE = Path(__file__).with_name("selective_scan.cpp")
forward_cpp = cpp_kernel(SOURCE, "selective_scan")
backward_cpp = cpp_kernel(SOURCE, "selective_scan_grad")
TIMES = 64  # steps of one associative scan: with 16 states, 8 values in each thread of 4 warps
NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state")
ALONG_TIME = ("u", "delta", "B", "C", "z")


def require_inputs(*inputs: Tensor | None) -> torch.dtype:
    """The dtype of states; raises where a dtype is not what the op takes."""
    for name, tensor in zip(NAMES, inputs, strict=True):
        if tensor is not None and name in ALONG_TIME and tensor.dtype != inputs[0].dtype:
            found = f"{inputs[0].dtype}, not {tensor.dtype}"
            raise TypeError(f"selective_scan: '{name}' must have the dtype of 'u', {found}")
        if tensor is not None and not tensor.is_floating_point():
            raise TypeError(f"selective_scan: '{name}' must have a floating-point dtype, not {tensor.dtype}")
    return torch.promote_types(inputs[0].dtype, torch.float32)


def widened(wide: torch.dtype, *tensors: Tensor | None) -> list[Tensor | None]:
    """What each channel has for itself, in the dtype of states; it is small beside u."""
    return [None if tensor is None else tensor.to(wide).contiguous() for tensor in tensors]


def scanned(u, delta, A, B, delta_bias, initial_state, delta_softplus, wide) -> tuple[Tensor, ...]:
    """Steps before and after softplus, exp(Δ A), and all states: (batch, channels, length + 1, state)."""
    raw = delta.to(wide) if delta_bias is None else delta.to(wide) + delta_bias.to(wide).unsqueeze(1)
    step = F.softplus(raw) if delta_softplus else raw
    decay = torch.exp(step.unsqueeze(-1) * A.to(wide).unsqueeze(1))
    term = (step * u.to(wide)).unsqueeze(-1) * B.to(wide).transpose(1, 2).unsqueeze(1)
    h = [u.new_zeros((*u.shape[:2], A.shape[1]), dtype=wide) if initial_state is None else initial_state.to(wide)]
    for t in range(u.shape[2]):
        h.append(decay[:, :, t] * h[-1] + term[:, :, t])
    return raw, step, decay, torch.stack(h, 2)


def scan_cpp(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus) -> tuple[Tensor, Tensor]:
    """C++: sixteen channels at a time, blocks of them in parallel; u, delta, B, C and z of any strides."""
    wide = require_inputs(u, delta, A, B, C, D, z, delta_bias, initial_state)
    A, D, delta_bias, initial_state = widened(wide, A, D, delta_bias, initial_state)
    return forward_cpp(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus)


def scan_grad_cpp(
    out_grad, last_state_grad, u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus
) -> list[Tensor]:
    """C++: the states where chunks begin, then chunk by chunk, from the last, its states and the gradients."""
    inputs = (u, delta, A, B, C, D, z, delta_bias, initial_state)
    wide = require_inputs(*inputs)
    last, A, D, delta_bias, initial_state = widened(wide, last_state_grad, A, D, delta_bias, initial_state)
    arguments = (u, delta, A, B, C, D, z, delta_bias, initial_state)
    grads = backward_cpp(out_grad, last, *arguments, delta_softplus)
    present = (tensor for tensor in inputs if tensor is not None)
    return [grad.to(tensor.dtype) for grad, tensor in zip(grads, present, strict=True)]


def scan_triton(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus) -> tuple[Tensor, Tensor]:
    """Triton: one program per channel and sequence, an associative scan in time; all inputs contiguous."""
    wide = require_inputs(u, delta, A, B, C, D, z, delta_bias, initial_state)
    A, D, delta_bias, initial_state = widened(wide, A, D, delta_bias, initial_state)
    (batch, channels, length), state = u.shape, A.shape[1]
    out, last_state = u.new_empty(u.shape), A.new_empty(batch, channels, state)
    if batch * channels:  # a grid of size 0 is an error
        tensors = (u, delta, A, B, C, D, z, delta_bias, initial_state, out, last_state)
        states = 1 << max(0, state - 1).bit_length()
        scan_channel[(batch * channels,)](*tensors, channels, length, state, delta_softplus, states, TIMES)
    return out, last_state


@triton_kernel
def then(factor, term, next_factor, next_term) -> tuple[tl.tensor, tl.tensor]:
    """Two maps h -> factor h + term, one after the other."""
    return factor * next_factor, next_factor * term + next_term


@triton_kernel
def scan_channel(
    u,
    delta,
    A,
    B,
    C,
    D,
    z,
    delta_bias,
    initial_state,
    out,
    last_state,
    channels,
    length,
    state,
    softplus: tl.constexpr,
    states: tl.constexpr,
    times: tl.constexpr,
) -> None:
    """Scans one channel of one sequence, `times` steps at once; an optional tensor that is None costs nothing."""
    row = tl.program_id(0).to(tl.int64)
    channel, n, t = row % channels, tl.arange(0, states), tl.arange(0, times)
    rates = tl.load(A + channel * state + n, mask=n < state, other=0)
    h = tl.zeros_like(rates) if initial_state is None else tl.load(initial_state + row * state + n, n < state, 0)
    for first in range(0, length, times):
        inside = first + t < length
        place, both = row * length + first + t, (n < state)[:, None] & inside[None, :]
        shared = (row // channels * state + n)[:, None] * length + first + t[None, :]
        x = tl.load(u + place, mask=inside, other=0).to(rates.dtype)
        step = tl.load(delta + place, mask=inside, other=0).to(rates.dtype)
        step = step if delta_bias is None else step + tl.load(delta_bias + channel)
        if softplus:
            e = tl.exp(tl.where(step > 20, 20.0, step))  # a minimum does not see NaN
            # log(1 + e), and what the rounding of 1 + e has lost
            step = tl.where(step > 20, step, tl.log(1 + e) + (e - ((1 + e) - 1)) / (1 + e))
        step = tl.where(inside, step, 0)
        term = (step * x)[None, :] * tl.load(B + shared, mask=both, other=0).to(rates.dtype)
        decay = tl.where(both, tl.exp(step[None, :] * rates[:, None]), 1.0)  # 0 times -inf is NaN
        factors, terms = tl.associative_scan((decay, term), 1, then)
        h_t = factors * h[:, None] + terms
        y = tl.sum(h_t * tl.load(C + shared, mask=both, other=0).to(rates.dtype), 0)
        y = y if D is None else y + tl.load(D + channel) * x
        if z is not None:
            gate = tl.load(z + place, mask=inside, other=0).to(rates.dtype)
            y = y * gate / (1 + tl.exp(-gate))
        tl.store(out + place, y.to(out.dtype.element_ty), mask=inside)
        h = tl.sum(tl.where(t[None, :] == times - 1, h_t, 0), 1)
    tl.store(last_state + row * state + n, h, mask=n < state)
