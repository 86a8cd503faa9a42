"""What the selective scan is measured on."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from cases import Case
from gallery.selective_scan import selective_scan  # examples/ is on the path
from torch import Tensor

MAMBA_130M = {"channels": 1536, "state": 16}
LENGTH = 64  # longer ones take `torch.compile` minutes to unroll


def op(*inputs: Tensor) -> Tensor:
    """With the skip, the gate, the bias and the softplus of a layer."""
    return selective_scan(*inputs, delta_softplus=True)[0]


def reference(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor, bias: Tensor) -> Tensor:
    """The selective_scan_ref of the authors' package: all factors at once, then step by step."""
    x, step = u.float(), F.softplus(delta.float() + bias[:, None])
    decay = torch.exp(torch.einsum("bdl,dn->bdln", step, A))
    term = torch.einsum("bdl,bnl,bdl->bdln", step, B.float(), x)
    h, outs = x.new_zeros(u.shape[0], *A.shape), []
    for t in range(u.shape[2]):
        h = decay[:, :, t] * h + term[:, :, t]
        outs.append(torch.einsum("bdn,bn->bd", h, C[:, :, t].float()))
    return ((torch.stack(outs, -1) + x * D[:, None]) * F.silu(z.float())).to(u.dtype)


def arguments(device: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """A layer's activations, in the dtype of training, and its parameters in float32."""
    channels, state = MAMBA_130M["channels"], MAMBA_130M["state"]
    u, delta, z = (torch.randn(2, channels, LENGTH, dtype=dtype, device=device) for _ in range(3))
    B, C = (torch.randn(2, state, LENGTH, dtype=dtype, device=device) for _ in range(2))
    A = -torch.arange(1.0, state + 1, device=device).repeat(channels, 1)
    D, bias = (torch.randn(channels, device=device) for _ in range(2))
    return tuple(tensor.requires_grad_() for tensor in (u, delta, A, B, C, D, z, bias))


def cases() -> Iterator[Case]:
    """A layer of Mamba 130M."""
    target = {(peer, mode): ratio for peer, ratio in (("eager", 1 / 1.5), ("compiled", 1.0)) for mode in MODES}
    for dtype in (torch.float32, torch.bfloat16):
        name = f"Mamba 130M, 2 x {LENGTH} tokens, {str(dtype).removeprefix('torch.')}"
        yield Case(name, op, reference, partial(arguments, dtype=dtype), target=target)


MODES = "forward", "backward"
