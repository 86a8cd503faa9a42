"""What every test gets: one thread, and no compiled code of the test before."""

import sys

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def fresh_compiler():
    """No compiled code is left over, neither before nor after the test."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture(autouse=True)
def seeded():
    """The global generator, where a test forgets to use its own."""
    if "torch" in sys.modules:
        torch.manual_seed(0)
