"""Every nesting of two derivatives, batched and compiled, is right by value: see tests/nestings.py."""

import pytest
from torch.testing import assert_close

from nestings import EXPECTED, NESTINGS, second_derivative
from ops import cube
from slow_cases import slow_but_every


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("nesting", slow_but_every(4, NESTINGS))
def test_nesting(nesting):
    assert_close(second_derivative(nesting, cube), EXPECTED)
