"""RandomState holds the states of every generator in use, and initialises no device."""

import pytest
import torch

from custom_autograd.values.random_state import RandomState, accelerators_in_use, kept_random_state


def test_a_restored_state_gives_the_same_numbers():
    before = RandomState.current()
    first = torch.rand(3)
    before.restore()

    assert torch.equal(first, torch.rand(3))


def test_has_moved_after_numbers_were_drawn():
    before = RandomState.current()
    assert not before.has_moved()
    torch.rand(())

    assert before.has_moved()
    assert before.moved(RandomState.current()) == {torch.device("cpu")}


def test_a_seeded_state_gives_the_numbers_of_manual_seed():
    RandomState.seeded(7).restore()
    drawn = torch.randn(3)
    torch.manual_seed(7)

    assert torch.equal(drawn, torch.randn(3))


def test_the_state_is_kept():
    before = RandomState.current()
    with kept_random_state():
        torch.rand(3)

    assert not before.has_moved()


def test_the_state_is_left_alone_if_nothing_is_to_be_kept():
    before = RandomState.current()
    with kept_random_state(is_enabled=False):
        torch.rand(3)

    assert before.has_moved()


@pytest.mark.skipif(torch.cuda.is_initialized(), reason="CUDA is initialised in this process")
def test_no_device_is_initialised(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("this would initialise CUDA")

    monkeypatch.setattr(torch.cuda, "get_rng_state", refuse)
    monkeypatch.setattr(torch.cuda, "set_rng_state", refuse)
    monkeypatch.setattr(torch.cuda, "device_count", refuse)
    RandomState.current().restore()
    RandomState.seeded(0).restore()

    assert "cuda" not in dict(accelerators_in_use())


def test_every_device_in_use_is_read(monkeypatch):
    states = {index: torch.tensor([index], dtype=torch.uint8) for index in range(2)}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[device].clone())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: states.update({device: state}))
    before = RandomState.current()
    states[1] += 1

    assert before.moved(RandomState.current()) == {torch.device("cuda", 1)}
    before.restore()
    assert not before.has_moved()
