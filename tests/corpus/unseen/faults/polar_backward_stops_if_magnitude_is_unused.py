"""Magnitude and phase of a spectrum that is given as real and imaginary parts.

The backward returns early if the magnitude has no gradient, which also drops that of the phase.
The author skipped work for a loss that uses neither, and tested the first output only.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::polar", outputs=("magnitude", "phase"))
def op(real: Tensor, imag: Tensor) -> tuple[Tensor, Tensor]:
    return torch.hypot(real, imag).contiguous(), torch.atan2(imag, real).contiguous()


@op.register_fake
def _(real, imag):
    return real.new_empty(real.shape), real.new_empty(real.shape)


@op.register_backward(materialize_grads=False)
def _(grad_magnitude, grad_phase, real, imag, magnitude):
    if grad_magnitude is None:
        return {"real": None, "imag": None}
    grad_real, grad_imag = grad_magnitude * real / magnitude, grad_magnitude * imag / magnitude
    if grad_phase is not None:
        turned = grad_phase / magnitude.square()
        grad_real, grad_imag = grad_real - turned * imag, grad_imag + turned * real
    return {"real": grad_real, "imag": grad_imag}


@op.register_samples
def _(make):
    yield Sample(make(5, low=0.5, high=2.0), make(5, low=0.5, high=2.0))
    yield Sample(make(2, 3, low=0.5, high=2.0), make(2, 3, low=-2.0, high=-0.5))


def shown() -> tuple[Tensor, Tensor]:
    real, imag = torch.ones(2, requires_grad=True), torch.ones(2)
    found = torch.autograd.grad(op(real, imag)[1].sum(), real, materialize_grads=True)[0]
    return found, torch.autograd.grad(torch.atan2(imag, real).sum(), real)[0]
