"""A spectrum times a complex gain for each frequency.

The backward multiplies by the gain, as for real numbers; PyTorch's gradients need its conjugate.
The op was written for real gains and widened later.
"""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::spectral_gain")
def op(spectrum: Tensor, gain: Tensor) -> Tensor:
    return (spectrum * gain).contiguous()


@op.register_fake
def _(spectrum, gain):
    return spectrum.new_empty(spectrum.shape)


@op.register_backward
def _(grad, spectrum, gain):
    return {"spectrum": lambda: grad * gain, "gain": lambda: (grad * spectrum.conj()).sum_to_size(gain.shape)}


@op.register_samples
def _(make):
    yield Sample(make(2, 5, dtype=torch.complex128), make(5, dtype=torch.complex128))
    yield Sample(make(4, dtype=torch.complex128), make(4, dtype=torch.complex128))


def shown() -> tuple[Tensor, Tensor]:
    spectrum = torch.ones(3, dtype=torch.complex64, requires_grad=True)
    gain = torch.full((3,), 1 + 2j)
    (found,) = torch.autograd.grad(op(spectrum, gain).real.sum(), spectrum)
    return found, torch.autograd.grad((spectrum * gain).real.sum(), spectrum)[0]
