"""A matrix times a gate, which is given per element or shared by all rows.

The gradient of a shared gate is reduced with `mean` and not with `sum`.
The author had normalized a loss by the batch elsewhere, and moved that factor into the wrong place.
"""

import torch
from torch import Tensor

from custom_autograd import custom_op


@custom_op("unseen::gated_rows", shapes="x: n d, gate: #n d -> output: n d")
def op(x: Tensor, gate: Tensor) -> Tensor:
    return (x * gate).contiguous()


@op.register_backward
def _(grad, x, gate):
    def for_gate():
        product = grad * x
        return product if gate.shape == x.shape else product.mean(0).reshape(gate.shape)

    return {"x": lambda: grad * gate, "gate": for_gate}


def shown() -> tuple[Tensor, Tensor]:
    x, gate = torch.randn(4, 3), torch.ones(1, 3, requires_grad=True)
    (found,) = torch.autograd.grad(op(x, gate).sum(), gate)
    return found, x.sum(0, keepdim=True)
