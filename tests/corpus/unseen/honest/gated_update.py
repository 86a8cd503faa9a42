"""A gated recurrent unit of two gates, whose weights have twice the features of its state."""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::gated_update", outputs=("out", "gates"), hidden=("gates",), reference=True)
def op(h: Tensor, recurrent: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    gates = (h.unsqueeze(-2) * recurrent).sum(-1)
    z, c = (gates if bias is None else gates + bias).chunk(2, -1)
    z, c = torch.sigmoid(z), torch.tanh(c)
    return h + z * (c - h), torch.cat((z, c), -1)


@op.register_backward
def _(grad_out, h, recurrent, gates, grad_gates=None):
    z, c = gates.chunk(2, -1)
    grad_z, grad_c = grad_out * (c - h), grad_out * z
    if grad_gates is not None:
        more_z, more_c = grad_gates.chunk(2, -1)
        grad_z, grad_c = grad_z + more_z, grad_c + more_c
    inner = torch.cat((grad_z * z * (1 - z), grad_c * (1 - c * c)), -1)
    return {
        "h": lambda: grad_out * (1 - z) + (inner.unsqueeze(-1) * recurrent).sum(-2),
        "recurrent": lambda: (inner.unsqueeze(-1) * h.unsqueeze(-2)).sum(0),
        "bias": lambda: inner.sum(0),
    }


@op.register_samples
def _(make):
    yield Sample(make(2, 4), make(8, 4), make(8))
    yield Sample(make(1, 2), make(4, 2))
