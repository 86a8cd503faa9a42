"""What people are told who bring the habits of another library: NumPy, JAX, Julia's ChainRules."""

import numpy as np
import pytest
import torch
from messages.shown import message
from numpy.typing import NDArray
from torch import Tensor

from custom_autograd import Sample, check, custom_op


@custom_op("newcomers::sine", reference=True)
def sine(x: Tensor) -> Tensor:
    return torch.sin(x)


@custom_op("newcomers::pair", outputs=("y", "residual"))
def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sin(x), torch.cos(x)


@custom_op("newcomers::total")
def total(x: Tensor) -> float:
    return float(x.sum())


def advice_of(act):
    """Return the last line of the message of an error, without its title."""
    return message(act).splitlines()[-1].strip().removeprefix("do").strip()


RULES = {
    "cotangent": (
        lambda: sine.register_backward(lambda ct, x: ct * torch.cos(x)),
        "the incoming gradient is called 'grad' or 'grad_output'; inputs and outputs, as in the op",
    ),
    "residuals": (
        lambda: pair.register_backward(lambda residual, g: residual * g),
        "the incoming gradient is called 'grad_y' or 'grad_residual'; inputs and outputs, as in the op",
    ),
    "tangent": (
        lambda: sine.register_jvp(lambda dx, x: dx * torch.cos(x)),
        "the incoming tangent is called 'tangent_x'; inputs and outputs, as in the op",
    ),
    "near": (lambda: sine.register_jvp(lambda tangent, x: tangent * torch.cos(x)), "did you mean 'tangent_x'?"),
    "number": (
        lambda: total.register_backward(lambda grad, meta: grad.expand(meta.x.shape)),
        "the op has no result with a gradient: for one, annotate a result as Tensor, and return a tensor",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_names_of_what_arrives_in_a_rule(name):
    act, advice = RULES[name]

    assert advice == advice_of(act)


def array(x: np.ndarray) -> Tensor:
    return torch.from_numpy(x)


def typed_array(x: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(x)


def returned_array(x: Tensor) -> np.ndarray:
    return x.numpy()


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (array, "annotate 'x' as Tensor: kernels are given a tensor, and x.numpy() shares its memory"),
        (typed_array, "annotate 'x' as Tensor: kernels are given a tensor, and x.numpy() shares its memory"),
        (returned_array, "annotate it as Tensor, and return torch.from_numpy(...)"),
    ],
    ids=["argument", "typed argument", "result"],
)
def test_arrays_in_annotations(function, advice):
    assert advice == advice_of(lambda: custom_op("newcomers::array", function))


def test_a_decorator_without_a_name_raises_at_the_declaration():
    def swish(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)

    assert "write custom_op('mylib::swish')" == advice_of(lambda: custom_op(swish))


def test_the_cause_of_an_error_of_a_rule_is_what_it_advises():
    @custom_op("newcomers::zero", reference=True)
    def zero(x: Tensor, y: Tensor) -> Tensor:
        return x + 0 * y

    zero.register_backward(lambda grad: {"x": grad, "y": 0})
    report = check(zero, [Sample(*torch.ones(2, 3, requires_grad=True))], checks=["layouts"], raise_on_failure=False)
    (result,) = report.results

    assert "the gradient of 'y' is not a tensor" in result.message
    assert result.cause == "return None, which means zero"
