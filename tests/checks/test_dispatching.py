"""A sample as the dispatcher gets it, and calls that draw the same each time."""

import enum

import torch
from torch import Generator, Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.verification.harness.dispatching import has_generator, repeatable, to_dispatcher


class Side(enum.Enum):
    """Two."""

    LEFT = 1
    RIGHT = 2


@custom_op("dispatching::mixed")
def mixed(x: Tensor, /, side: Side, *rest: Tensor, limit: float | None = float("inf")) -> Tensor:
    return x * side.value


@custom_op("dispatching::noise")
def noise(x: Tensor, generator: Generator) -> Tensor:
    return x + torch.rand(x.shape, generator=generator)


def test_values_are_converted_gathered_and_filled_in():
    call = to_dispatcher(mixed.schema, Sample(1, Side.RIGHT, 2, 3))

    assert ((1, "RIGHT", [2, 3]), {"limit": float("inf")}) == (call.args, call.kwargs)


def test_a_call_with_a_generator_can_be_repeated():
    generator, x = Generator().manual_seed(1), torch.zeros(3)
    call = repeatable(noise.schema, noise)

    assert torch.equal(call(x, generator), call(x, generator=generator))
    assert not torch.equal(noise(x, generator), noise(x, generator))


def test_other_functions_stay_as_they_are():
    assert repeatable(mixed.schema, mixed) is mixed


def test_a_sample_with_a_generator_is_known():
    assert has_generator(Sample(generator=Generator()))
    assert not has_generator(Sample(torch.ones(1)))
