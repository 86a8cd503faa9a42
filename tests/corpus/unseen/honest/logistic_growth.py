"""A population after some steps of logistic growth, y' = r y (1 - y), by Euler's method.

The backward solves the discrete adjoint equation from the last step to the first, and recomputes the states.
"""

from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("unseen::logistic_growth")
def op(y: Tensor, rate: Tensor, steps: int, h: float) -> Tensor:
    y = y.clone()
    for _ in range(steps):
        y = y + h * rate * y * (1 - y)
    return y.contiguous()


@op.register_fake
def _(y, rate, steps, h):
    return y.new_empty(y.shape)


@op.register_backward
def _(grad, y, rate, steps, h):
    states = [y]
    for _ in range(steps):
        states.append(states[-1] + h * rate * states[-1] * (1 - states[-1]))
    adjoint, grad_rate = grad, grad.new_zeros(())
    for state in reversed(states[:-1]):
        grad_rate = grad_rate + (adjoint * h * state * (1 - state)).sum()
        adjoint = adjoint * (1 + h * rate * (1 - 2 * state))
    return {"y": adjoint, "rate": grad_rate if steps > 0 else None}


@op.register_samples
def _(make):
    yield Sample(make(4, low=0.1, high=0.9), make(low=0.5, high=1.0), 5, 0.1)
    yield Sample(make(2, 3, low=0.1, high=0.9), make(low=0.5, high=1.0), 2, 0.5)
