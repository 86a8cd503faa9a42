"""What tests of packages share: builds that do not take long."""

import platform

import pytest

from custom_autograd.kernels import portable


@pytest.fixture
def one_level(monkeypatch):
    """Build for the least processors only: each level takes as long."""
    monkeypatch.setitem(portable.LEVELS, platform.machine(), (portable.levels()[-1],))
