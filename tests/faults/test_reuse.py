"""The check `reuse` fails a backward that depends on more than its own call."""

import threading

import torch
from tables import each
from torch.autograd import Function
from verdicts import verdict

from custom_autograd.schema.samples import Sample

result_of = verdict("reuse", lambda make: [Sample(make(4, 3))])


class Squared(Function):
    """y = x², differentiated right."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad * x


class KeepsInGlobal(Squared):
    last = None

    @staticmethod
    def forward(ctx, x):
        KeepsInGlobal.last = x.detach()
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * KeepsInGlobal.last


class WritesToSaved(Squared):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.detach().mul_(2)


class UsesUp(Squared):
    @staticmethod
    def forward(ctx, x):
        ctx.factor = [2.0]
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (ctx.factor.pop() if ctx.factor else 0.0) * grad * x


class ReturnsBuffer(Squared):
    buffer = torch.empty(4, 3)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.mul(grad.detach(), 2 * x.detach(), out=ReturnsBuffer.buffer)


class ReadsThreadLocal(Squared):
    local = threading.local()

    @staticmethod
    def forward(ctx, x):
        ReadsThreadLocal.local.factor = 2.0
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return ReadsThreadLocal.local.factor * grad * x


class Dropped(Function):
    """Draws its mask in the forward and keeps it."""

    @staticmethod
    def forward(ctx, x):
        mask = torch.rand_like(x) > 0.5
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad * mask


class DrawsAgain(Dropped):
    @staticmethod
    def backward(ctx, grad):
        return grad * (torch.rand_like(grad) > 0.5)


def name_of(op):
    return getattr(op, "__name__", str(op))


@each("op", [Squared, Dropped, torch.sin, torch.nn.functional.dropout])
def test_backward_of_its_own_call_passes(op):
    assert ["passed"] * 5 == [result_of(op, seed=seed).status for seed in range(5)]


@each(
    ("op", "message", "cause"),
    [
        (KeepsInGlobal, "with another call between forward and backward: gradient of 'x'[", "state outside ctx"),
        (WritesToSaved, "the backward writes to saved tensor 0, of shape (4, 3)", "in place on a saved tensor"),
        (UsesUp, "with two backwards: gradient of 'x'[", "uses up"),
        (
            ReturnsBuffer,
            "the gradient of 'x' that one backward returned changes during the next",
            "a buffer that is kept",
        ),
        (DrawsAgain, "with other random numbers drawn before the backward: gradient of 'x'[", "draws again"),
        (ReadsThreadLocal, "backward in another thread: the op raises AttributeError: ", "belongs to the thread"),
    ],
)
def test_backward_that_depends_on_more_fails(op, message, cause):
    result = result_of(op)

    assert "failed" == result.status
    assert message in result.message
    assert cause in result.cause
