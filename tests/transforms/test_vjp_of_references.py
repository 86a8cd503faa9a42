"""Backwards that are derived from a reference, and run where their level of `torch.func` has ended."""

import pytest
import torch
from torch import Tensor

from custom_autograd import custom_op


@custom_op("vjp_of_references::product", reference=True)
def product(x: Tensor, y: Tensor) -> Tensor:
    return torch.sin(x) * y


def plain(x, y):
    return torch.sin(x) * y


def numbers():
    return torch.linspace(0.5, 2.0, 3, dtype=torch.float64)


def pulled(f, x, y, cotangent):
    return torch.func.vjp(lambda x: f(x, y), x)[1](cotangent)[0]


@pytest.mark.parametrize("recorded", [None, 1, 2], ids=["nothing", "another input", "the cotangent"])
def test_a_gradient_requires_one_if_what_it_is_made_of_does(recorded):
    given = [numbers() for _ in range(3)]
    if recorded is not None:
        given[recorded].requires_grad_()

    found, expected = pulled(product, *given), pulled(plain, *given)

    assert expected.requires_grad == found.requires_grad
    torch.testing.assert_close(found, expected)
    if recorded is not None:
        second = [torch.autograd.grad(one.sum(), given[recorded])[0] for one in (found, expected)]
        torch.testing.assert_close(*second)


@pytest.mark.parametrize("is_left", [False, True], ids=["in inference mode", "afterwards"])
def test_inputs_may_be_inference_tensors(is_left):
    with torch.inference_mode():
        x = numbers()
    with torch.inference_mode(not is_left):
        for y in (x, numbers()):
            torch.testing.assert_close(pulled(product, x, y, x), pulled(plain, x, y, x))
            torch.testing.assert_close(pulled(product, numbers(), x, x), pulled(plain, numbers(), x, x))
