"""An exponential moving average that is updated in place, with gradients through the update."""

from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::ema_update_", mutates_args=("average",))
def op(average: Tensor, x: Tensor, decay: float) -> None:
    average.mul_(decay).add_(x, alpha=1 - decay)


@op.register_backward
def _(grad, decay):
    return {"average": decay * grad, "x": (1 - decay) * grad}


@op.register_samples
def _(make):
    yield Sample(make(4), make(4), 0.9)
    yield Sample(make(2, 3), make(2, 3), 0.5)
