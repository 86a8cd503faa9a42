"""Nodes and rules run generated Python here; tests/native and the grids of tests/dispatch look at native calls."""

import pytest


@pytest.fixture(autouse=True)
def in_python(generated_python):
    """See above."""
