"""f(x) = op(x)^2 with op = x^3 is 30 x^4 in second order, however it is reached.

Each line of the autograd kernel's recipe, left out, makes one of these silently wrong.
"""

import pytest
import torch
from tables import each
from torch.func import grad, hessian, jacfwd, jacrev, vmap
from torch.testing import assert_close

from ops import cube

X = torch.tensor([0.7, 1.3, -2.0], dtype=torch.float64)
SECOND = {
    "grad of grad": lambda f: vmap(grad(grad(f))),
    "hessian": lambda f: vmap(hessian(f)),
    "jacrev of jacrev": lambda f: vmap(jacrev(jacrev(f))),
    "jacfwd of jacfwd": lambda f: vmap(jacfwd(jacfwd(f))),
    "jacfwd of jacrev": lambda f: vmap(jacfwd(jacrev(f))),
    "jacrev of jacfwd": lambda f: vmap(jacrev(jacfwd(f))),
}


def square(x):
    return cube(x) ** 2


@each("order", SECOND.values(), ids=SECOND)
def test_second_order(order):
    assert_close(order(square)(X), 30 * X**4)


@each("order", SECOND.values(), ids=SECOND)
def test_second_order_without_vmap(order):
    for x in X:
        assert_close(order(square)(x[None])[0], 30 * x**4)


def test_third_order():
    assert_close(vmap(grad(grad(grad(square))))(X), 120 * X**3)
    assert_close(vmap(jacfwd(jacfwd(jacfwd(square))))(X), 120 * X**3)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("order", [hessian, lambda f: grad(grad(f)), lambda f: jacfwd(jacfwd(f))],
                         ids=["hessian", "grad of grad", "jacfwd of jacfwd"])  # fmt: skip
def test_second_order_compiled(order):
    f = torch.compile(order(square), backend="aot_eager", fullgraph=True)

    assert_close(f(X[0]), 30 * X[0] ** 4)
