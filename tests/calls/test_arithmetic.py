"""Which kernels and rules do nothing but add, subtract and multiply what they are given."""

from __future__ import annotations

import torch
from tables import each

from custom_autograd.execution.kernel_call import is_arithmetic

WEIGHT = torch.nn.Parameter(torch.full((3,), 2.0))


def closing(weight):
    return lambda x: x * weight


def add_in_place(x, y):
    x += y
    return x


ARITHMETIC = {
    "a product": lambda x, y: x * y,
    "a sum of products": lambda x, y: x * y + 2 * x - 1,
    "a negative": lambda x: -x,
    "two products by name": lambda grad, x, y: {"x": grad * y, "y": grad * x},
    "a product by name": lambda grad, x: {"x": 2 * grad * x},
    "a local": lambda x, y: (x + y) * 3.0,
    "several results": lambda x, y: (x * y, x - y),
    "a list": lambda x, y: [x * y, x - y],
    "no second gradient": lambda grad, x: (grad * x, None),
    "a changed sign": lambda x: x * -1,
}
OTHERS = {
    "a global": lambda x: x * WEIGHT,
    "a global module": lambda x: torch.relu(x),
    "a method": lambda x: x.sum(),
    "an attribute": lambda x: x * x.scale,
    "a closure": closing(2.0),
    "a default": lambda x, scale=2.0: x * scale,
    "a keyword default": lambda x, *, scale=2.0: x * scale,
    "a reflected division": lambda x: 1 / x,
    "a power": lambda x: x**2,
    "a matrix product": lambda x, y: x @ y,
    "a sum in place": add_in_place,
    "a comprehension": lambda x: [item * 2 for item in x],
    "an element": lambda x: x[0],
    "a function in a function": lambda x: (lambda: x * 2)(),
    "a builtin": torch.relu,
    "an object": torch.ones(3).__mul__,
}


@each("kernel", ARITHMETIC.values(), ids=ARITHMETIC)
def test_sums_and_products_of_arguments_are_arithmetic(kernel):
    assert is_arithmetic(kernel)


@each("kernel", OTHERS.values(), ids=OTHERS)
def test_nothing_else_is_arithmetic(kernel):
    assert not is_arithmetic(kernel)


def test_a_constant_that_is_no_number_is_no_arithmetic():
    def kernel(x):
        return x * 2.0

    kernel.__code__ = kernel.__code__.replace(co_consts=(None, WEIGHT))

    assert not is_arithmetic(kernel)
