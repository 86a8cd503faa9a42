"""Every nesting of derivatives, batched and compiled, is right by value: see tests/nestings.py.

Each line of the autograd kernel's recipe, left out, makes one of these silently wrong.
"""

import pytest
import torch
from tables import each
from torch.func import grad, hessian, jacfwd, vmap
from torch.testing import assert_close

from nestings import EXPECTED, NESTINGS, X, second_derivative
from ops import cube
from slow_cases import slow_but_every

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def square(x):
    return cube(x) ** 2


@pytest.mark.parametrize("nesting", slow_but_every(4, NESTINGS))
def test_nesting(nesting):
    assert_close(second_derivative(nesting, cube), EXPECTED)


def test_third_order():
    assert_close(vmap(grad(grad(grad(square))))(X), 120 * X**3)
    assert_close(vmap(jacfwd(jacfwd(jacfwd(square))))(X), 120 * X**3)


@each("order", [hessian, lambda f: grad(grad(f)), lambda f: jacfwd(jacfwd(f))])
def test_second_order_compiled(order):
    f = torch.compile(order(square), backend="aot_eager", fullgraph=True)

    assert_close(f(X[0]), 30 * X[0] ** 4)
