"""What a schema may say that an op returns: it works, or the declaration refuses it and names the type."""

import re

import pytest
import torch
from expecttest import assert_expected_inline
from tables import each
from torch import Tensor

from custom_autograd import DeclarationError, custom_op

REFUSED = (
    "str",
    "str[]",
    "float[]",
    "bool[]",
    "SymInt[]",
    "int[2]",
    "Scalar[]",
    "int?",
    "float?",
    "str?",
    "complex",
    "Device",
    "ScalarType",
    "Layout",
    "Generator",
    "Any",
    "Dict(str, Tensor)",
    "Tensor[][]",
    "(Tensor, int[])",
    "(str, Tensor)",
)


def refusal(result):
    with pytest.raises(DeclarationError) as caught:
        custom_op("result_types::refused", lambda x: x, schema=f"(Tensor x) -> {result}")
    return caught.value


@each("result", REFUSED)
def test_a_type_that_cannot_be_returned_is_refused_when_it_is_declared(result):
    """The call would be refused, each time."""
    error = refusal(result)

    assert "has a type that an op cannot return" in error.problem
    assert error.found in result.replace("SymInt", "int").replace("[2]", "[]").replace("Dict(str, Tensor)", error.found)
    assert error.do.startswith("return ")


def test_message():
    assert_expected_inline(
        re.sub(r":\d+", ":N", str(refusal("(Tensor, int[])"))),
        """\
result_types::refused: output 'output_1' has a type that an op cannot return
  expected   Tensor, Tensor?, Tensor[], bool, int, float, Scalar, or a tuple of those
  found      int[]
  declared   test_result_types.py:N
  do         return a tensor of the values, or each one as an output: (float, float) for float[]""",
    )


RESULTS = {"bool": True, "int": 3, "SymInt": 3, "float": 0.5, "Scalar": 1j, "(int, float)": (1, 0.5)}


@each("result", RESULTS)
def test_a_number_is_returned(result):
    op = custom_op("result_types::number", lambda x: RESULTS[result], schema=f"(Tensor x) -> {result}", replace=True)

    for _ in range(3):
        assert RESULTS[result] == op(torch.ones(2))


def gaps(x: Tensor, y: Tensor) -> list[Tensor | None]:
    return [None, x * 2, y * x]


by_rule = custom_op("result_types::gaps", gaps, schema="(Tensor x, Tensor y) -> Tensor?[]")
by_reference = custom_op("result_types::gaps2", gaps, schema="(Tensor x, Tensor y) -> Tensor?[]", reference=True)


@by_rule.register_fake
def _(x, y):
    return [None, torch.empty_like(x), torch.empty_like(x)]


@by_rule.register_backward
def _(grad_output, x, y):
    _, double, product = [torch.zeros_like(x) if grad is None else grad for grad in grad_output]
    return {"x": 2 * double + product * y, "y": product * x}


def loss(function):
    return lambda x, y: (lambda found: found[1].sum() + found[2].square().sum())(function(x, y))


X, Y = torch.arange(6.0).reshape(2, 3), torch.arange(1.0, 7.0).reshape(2, 3)
WAYS = {
    "plain": lambda f: f(X, Y)[1:],
    "grad": lambda f: torch.func.grad(loss(f), (0, 1))(X, Y),
    "jvp": lambda f: torch.func.jvp(loss(f), (X, Y), (Y, X)),
    "vmap": lambda f: torch.vmap(lambda x, y: tuple(f(x, y)[1:]))(X, Y),
    "vmap of grad": lambda f: torch.vmap(torch.func.grad(loss(f), (0, 1)))(X, Y),
    "hessian": lambda f: torch.func.hessian(loss(f), (0, 1))(X, Y),
    "backward": lambda f: torch.autograd.grad(loss(f)(*leaves()), leaves.last),
}


def leaves():
    leaves.last = X.clone().requires_grad_(), Y.clone().requires_grad_()
    return leaves.last


@each("way", WAYS)
@each("op", [by_rule, by_reference], ids=["rule", "reference"])
def test_a_list_with_none_has_gradients(op, way):
    torch.testing.assert_close(WAYS[way](op), WAYS[way](gaps))
    assert op(X, Y)[0] is None


@pytest.mark.parametrize("op", [by_rule, by_reference], ids=["rule", "reference"])
def test_a_list_with_none_is_compiled(op):
    torch.compiler.reset()
    expected = torch.autograd.grad(loss(gaps)(*leaves()), leaves.last)

    compiled = torch.compile(loss(op), backend="aot_eager", fullgraph=True)

    torch.testing.assert_close(torch.autograd.grad(compiled(*leaves()), leaves.last), expected)
