"""Every nesting of two derivatives, batched and compiled, is right by value: see tests/nestings.py."""

import pytest
from torch.testing import assert_close

from nestings import EXPECTED, NESTINGS, second_derivative
from ops import cube


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("nesting", NESTINGS)
def test_nesting(nesting):
    assert_close(second_derivative(nesting, cube), EXPECTED)
