"""A reference that would draw other random numbers than the call answers for no gradient and no tangent."""

import pytest
import torch
from torch import Tensor

from custom_autograd import GradientUnavailable, Sample, check, custom_op

RANDOM = torch.Tag.nondeterministic_seeded


@custom_op("random_references::drop", tags=RANDOM, reference=True)
def drop(x: Tensor, p: float = 0.5) -> Tensor:
    return x * torch.bernoulli(torch.full_like(x, 1 - p)) / (1 - p)


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_gradient_of_a_reference_that_draws_is_refused(backend):
    call = drop if backend is None else torch.compile(drop, backend=backend)
    x = torch.ones(8, requires_grad=True)

    with pytest.raises(Exception, match="a reference would draw again"):
        call(x).sum().backward()


def test_tangent_of_a_reference_that_draws_is_refused():
    with pytest.raises(GradientUnavailable, match=r"random_references::drop: .* a tangent is requested"):
        torch.func.jvp(drop, (torch.ones(8),), (torch.ones(8),))


def test_call_without_a_gradient_draws_as_its_reference():
    x = torch.ones(8)
    torch.manual_seed(0)
    expected = x * torch.bernoulli(torch.full_like(x, 0.5)) / 0.5

    torch.manual_seed(0)

    assert torch.equal(expected, drop(x))


def test_backward_reads_what_was_drawn_and_check_compares_with_the_reference():
    @custom_op("random_references::drop_by_mask", tags=RANDOM, hidden="mask", outputs=("y", "mask"))
    def drop_by_mask(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
        mask = torch.bernoulli(torch.full_like(x, 1 - p)) / (1 - p)
        return x * mask, mask

    drop_by_mask.register_backward(lambda grad_y, mask: grad_y * mask)

    @drop_by_mask.register_reference
    def _(x, p):
        mask = torch.bernoulli(torch.full_like(x, 1 - p)) / (1 - p)
        return x * mask, mask

    x = torch.ones(64, requires_grad=True)
    y = drop_by_mask(x, 0.5)
    y.sum().backward()

    assert torch.equal(y, x.grad)
    check(drop_by_mask, lambda make: [Sample(make(3, 4), 0.25)], raise_on_failure=True)
