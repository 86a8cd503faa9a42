"""The check `saved_hooks` fails an op whose gradient changes where PyTorch takes over what it saves."""

import torch
from tables import each
from torch.autograd import Function
from verdicts import verdict

from custom_autograd.schema.samples import Sample

result_of = verdict("saved_hooks", lambda make: [Sample(make(4, 3))])


class Squared(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad * x


class ComparesMemory(Squared):
    """Takes a short way if what was saved is still where it was."""

    @staticmethod
    def forward(ctx, x):
        ctx.address = x.data_ptr()
        return Squared.forward(ctx, x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (2 if x.data_ptr() == ctx.address else 1) * grad * x


class DrawsItsOwnMask(Function):
    """Dropout from a generator that checkpointing does not know."""

    generator = torch.Generator()

    @staticmethod
    def forward(ctx, x):
        mask = torch.rand(x.shape, generator=DrawsItsOwnMask.generator.manual_seed(0)) > 0.5
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad * mask


class SavesOtherSizesEachTime(Squared):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        SavesOtherSizesEachTime.calls += 1
        ctx.save_for_backward(x, x.new_zeros(1 + SavesOtherSizesEachTime.calls % 2))
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]


def floor_and_double(x):
    """The first output carries no gradient."""
    return x.detach().floor()[:2], x * 2


@each("op", [floor_and_double, Squared, DrawsItsOwnMask, torch.sin, torch.nn.functional.dropout])
def test_gradients_that_stay_pass(op):
    assert ["passed"] * 5 == [result_of(op, seed=seed).status for seed in range(5)]


def test_gradient_that_depends_on_where_a_saved_tensor_lies_fails():
    result = result_of(ComparesMemory)

    assert "failed" == result.status
    assert "under saved_tensors_hooks that copy: gradient of 'x'[" in result.message
    assert "(ratio 0.5), by a plain call" in result.message


def test_forward_that_saves_something_else_when_computed_again_fails():
    result = result_of(SavesOtherSizesEachTime)

    assert "failed" == result.status
    assert "under checkpoint(use_reentrant=False): the op raises CheckpointError: " in result.message
