"""The random state of the device is read, restored and seeded with the CPU's."""

import pytest
import torch
from torch import Tensor, nn

from custom_autograd import Sample, check, custom_op
from custom_autograd.values.random_state import RandomState, kept_random_state
from custom_autograd.verification.harness import settings
from custom_autograd.verification.harness.targets import target_of

pytestmark = pytest.mark.slow

DEVICE = torch.device("second", 0)


@custom_op("second_device::noisy", tags=torch.Tag.nondeterministic_seeded)
def noisy(x: Tensor) -> Tensor:
    """Draw from the generator of the device of x."""
    return x + torch.rand_like(x)


@custom_op("second_device::undeclared")
def undeclared(x: Tensor) -> Tensor:
    """Draw from the generator of the device of x, without the tag."""
    return x + torch.rand_like(x)


@custom_op("second_device::seeds")
def seeds(x: Tensor) -> Tensor:
    """Seed the generator of the device of x."""
    torch.second.manual_seed(0)
    return x + 1


@custom_op("second_device::scaled_sin", reference=True, shapes="x: *b d, scale: *b d -> output: *b d")
def scaled_sin(x: Tensor, scale: Tensor) -> Tensor:
    """Return scale * sin(x)."""
    return scale * torch.sin(x)


@scaled_sin.register_backward
def _(grad, x, scale):
    return grad * scale * torch.cos(x), grad * torch.sin(x)


@scaled_sin.register_samples
def _(make):
    yield Sample(make(3, 4), make(3, 4))
    yield Sample(make(5), make(5))


def test_a_restored_state_gives_the_same_numbers_on_both_devices():
    before = RandomState.current()
    first = torch.rand(3, device=DEVICE), torch.rand(3)
    assert before.moved(RandomState.current()) == {DEVICE, torch.device("cpu")}
    before.restore()

    assert torch.equal(first[0], torch.rand(3, device=DEVICE))
    assert torch.equal(first[1], torch.rand(3))


def test_numbers_that_are_drawn_on_the_device_move_its_state_alone():
    before = RandomState.current()
    nn.functional.dropout(torch.ones(3, device=DEVICE))

    assert before.moved(RandomState.current()) == {DEVICE}


def test_a_seeded_state_gives_the_numbers_of_manual_seed():
    RandomState.seeded(7).restore()
    drawn = torch.randn(3, device=DEVICE)
    torch.manual_seed(7)

    assert torch.equal(drawn, torch.randn(3, device=DEVICE))


def test_the_state_of_the_device_is_kept():
    before = RandomState.current()
    with kept_random_state():
        torch.rand(3, device=DEVICE)

    assert not before.has_moved()


def test_isolated_randomness_seeds_the_device_and_restores_it():
    before, drawn = RandomState.current(), []
    for _ in range(2):
        with settings.isolated(3):
            drawn.append(torch.rand(3, device=DEVICE))

    assert torch.equal(*drawn)
    assert not before.has_moved()


def test_a_call_that_draws_on_the_device_is_random():
    x = torch.ones(3, device=DEVICE)

    assert settings.is_random(target_of(noisy), Sample(x))
    assert not settings.is_random(target_of(scaled_sin), Sample(x, x))


@pytest.mark.parametrize("names", ["layouts", "needs", "compile", "subclasses", "sharding", "second_order"])
def test_an_honest_op_passes_a_check_that_draws_cotangents(names):
    report = check(scaled_sin, checks=names, device="second")

    assert report.ok, report
    assert [result for result in report.results if result.status == "passed"]


def test_an_undeclared_draw_on_the_device_is_found():
    report = check(undeclared, [Sample(torch.ones(3, device=DEVICE))], checks="determinism")

    assert "it draws random numbers, which its schema does not say" in report.results[0].message


def test_a_seed_of_the_device_is_found():
    report = check(seeds, [Sample(torch.ones(3, device=DEVICE))], checks="process_state")

    assert "a call seeds torch's random numbers" in report.results[0].message


def test_vmap_draws_the_same_numbers_for_each_sample_on_the_device():
    x = torch.zeros(4, 3, device=DEVICE)
    same = torch.vmap(noisy, randomness="same")(x)
    different = torch.vmap(noisy, randomness="different")(x)

    assert torch.equal(same, same[:1].expand(4, 3))
    assert not torch.equal(different, different[:1].expand(4, 3))
