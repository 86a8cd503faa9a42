"""The power mean of positive numbers for an exponent that is not zero, such as the harmonic mean for -1."""

from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::power_mean", reference=True)
def op(x: Tensor, p: float) -> Tensor:
    if p == 0:
        raise ValueError("'p' must not be 0: the geometric mean is another op")
    return x.pow(p).mean(-1).pow(1 / p).contiguous()


@op.register_backward
def _(grad, x, output, p):
    ratio = x / output.unsqueeze(-1)
    return {"x": grad.unsqueeze(-1) * ratio.pow(p - 1) / x.shape[-1]}


@op.register_samples
def _(make):
    yield Sample(make(3, 4, low=0.5, high=2.0), -1.0).keeping("p")
    yield Sample(make(6, low=0.5, high=2.0), 2.5).keeping("p")
    yield Sample(make(3, low=0.5, high=2.0), 0.0).raises(ValueError, match="must not be 0")
