"""A derived gradient raises if the reference is cut from an input, and is zero if the input has no influence."""

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from tables import each
from torch import Tensor

from custom_autograd import GradientUnavailable, custom_op

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def without_grad(x):
    with torch.no_grad():
        return x.exp()


def in_inference_mode(x):
    with torch.inference_mode():
        y = x.exp()
    return y.clone()


def into_buffer(x):
    buffer = torch.empty_like(x)
    with torch.no_grad():
        torch.exp(x, out=buffer)
    return buffer


CUTS = {
    "detach": lambda x: x.detach().exp(),
    "data": lambda x: x.data * 2,
    "no_grad": without_grad,
    "inference_mode": in_inference_mode,
    "out= under no_grad": into_buffer,
    "NumPy": lambda x: torch.from_numpy(x.detach().numpy() * 2),
    "item": lambda x: x.sum().item() * torch.ones(3),
    "tolist": lambda x: torch.tensor(x.tolist()),
}
NO_INFLUENCE = {
    "unused": lambda x, y: x * 2,
    "shape": lambda x, y: x.expand_as(y) * 2,
    "comparison": lambda x, y: torch.where(y > 0, x * 2, x * 2),
    "comparison of a detached": lambda x, y: torch.where(y.detach() > 0, x * 2, x * 2),
    "index": lambda x, y: x.index_select(0, y.argsort()) * 2,
    "another is detached": lambda x, y: x * 2 + (x - x).detach(),
}
CONNECTED = {
    "straight-through": lambda x: x + (x.round() - x).detach(),
    "maximum subtracted": lambda x: (x - x.max().detach()).exp(),
    "zero everywhere": torch.sign,
}


def declare(function, schema="(Tensor x) -> Tensor"):
    op = custom_op("cut::op", function, schema=schema, reference=True, replace=True)
    op.register_fake(lambda x, *_: torch.empty_like(x))
    return op


def eager(f):
    leaf = X.clone().requires_grad_()
    for _ in range(3):
        leaf.grad = None
        f(leaf).sum().backward()
    return torch.zeros(3) if leaf.grad is None else leaf.grad


def recorded(f):
    leaf = X.clone().requires_grad_()
    (found,) = torch.autograd.grad(f(leaf).sum(), leaf, create_graph=True, allow_unused=True)
    return torch.zeros(3) if found is None else found.detach()


X = torch.tensor([0.5, 1.0, 2.0])
LEAF, LEAF_2 = X.clone().requires_grad_(), X.clone().requires_grad_()
WAYS = {
    "eager": eager,
    "recorded": recorded,
    "func.grad": lambda f: torch.func.grad(lambda x: f(x).sum())(X),
    "func.vjp": lambda f: torch.func.vjp(f, X)[1](torch.ones(3))[0],
    "vmap of func.grad": lambda f: torch.vmap(torch.func.grad(lambda x: f(x).sum()))(X[None])[0],
    "compiled": lambda f: eager(torch.compile(f, backend="aot_eager")),
}
READS_VALUES = {("NumPy", way) for way in ("func.grad", "vmap of func.grad", "compiled")} | {
    (cut, "vmap of func.grad") for cut in ("data", "item", "tolist", "out= under no_grad")
}
"""Where PyTorch itself refuses what the reference does, before there is a result."""


def cut_from_its_input(cut):
    return declare(CUTS[cut])


def cut_from_one_of_two_inputs(cut):
    op = declare(lambda x, y: x * 2 + CUTS[cut](y), "(Tensor x, Tensor y) -> Tensor")
    return lambda x: op(x, x)


@pytest.mark.usefixtures("both_calls")
@each("way", WAYS)
@each("cut", CUTS)
@pytest.mark.parametrize(("make", "name"), [(cut_from_its_input, "x"), (cut_from_one_of_two_inputs, "y")])
def test_a_reference_that_is_cut_from_an_input_raises(make, name, cut, way):
    expected = f"the gradient of '{name}' is asked for, and the reference is cut from it"

    with pytest.raises(Exception, match=None if (cut, way) in READS_VALUES else expected):
        WAYS[way](make(cut))


@pytest.mark.usefixtures("both_calls")
@each("way", WAYS)
@each("function", NO_INFLUENCE)
def test_an_input_without_influence_has_a_gradient_of_zero(function, way):
    op = declare(NO_INFLUENCE[function], "(Tensor x, Tensor y) -> Tensor")

    assert [2.0, 2.0, 2.0] == WAYS[way](lambda x: op(x, x)).tolist()


@each("way", [way for way in WAYS if way not in ("func.vjp", "compiled")])
@each("function", CONNECTED)
def test_a_cut_beside_a_connection_is_as_in_pytorch(function, way):
    op = declare(CONNECTED[function])

    torch.testing.assert_close(WAYS[way](op), WAYS[way](CONNECTED[function]))


@each("cut", [cut for cut in CUTS if cut != "NumPy"])
def test_a_derived_tangent_raises(cut):
    with pytest.raises(GradientUnavailable, match="the reference is cut from it"):
        torch.func.jvp(declare(CUTS[cut]), (X,), (X,))


STEPS = {
    **{name: getattr(torch, name) for name in ("round", "floor", "ceil", "trunc", "sign", "sgn")},
    "floor of a quotient": lambda y: torch.div(y, 2.0, rounding_mode="floor"),
}
FORWARD = {
    "jvp": lambda f: torch.func.jvp(f, (X, X), (X, X)),
    "jvp along y": lambda f: torch.func.jvp(lambda y: f(X, y), (X,), (X,)),
    "jacfwd": lambda f: torch.func.jacfwd(f, (0, 1))(X, X),
    "jvp of jvp": lambda f: torch.func.jvp(lambda x: torch.func.jvp(lambda x: f(x, x), (x,), (x,))[1], (X,), (X,)),
    "func.grad of jvp": lambda f: torch.func.grad(lambda x: torch.func.jvp(f, (x, x), (x, x))[1].sum())(X),
    "jvp of func.grad": lambda f: torch.func.jvp(torch.func.grad(lambda x: f(x, x).sum()), (X,), (X,)),
}


@each("way", FORWARD)
@each("step", STEPS)
def test_a_tangent_through_a_function_whose_gradient_is_zero_is_that_of_pytorch(step, way):
    def function(x, y):
        return x * STEPS[step](y)

    torch.testing.assert_close(
        FORWARD[way](declare(function, "(Tensor x, Tensor y) -> Tensor")), FORWARD[way](function)
    )


SECOND = {
    "recorded": lambda f: torch.autograd.grad(f(LEAF, LEAF_2).sum(), LEAF, create_graph=True)[0].sum().backward(),
    "func.grad": lambda f: torch.func.grad(lambda y: torch.func.grad(lambda x: f(x, y).sum())(X).sum())(X),
    "func.jacrev": lambda f: torch.func.jacrev(lambda y: torch.func.jacrev(lambda x: f(x, y).sum())(X).sum())(X),
}
"""The derivative along the second input of the gradient of the first."""


@each("way", SECOND)
@each("cut", ["detach", "no_grad", "inference_mode", "tolist"])
def test_a_second_derivative_raises(cut, way):
    op = declare(lambda x, y: x * CUTS[cut](y), "(Tensor x, Tensor y) -> Tensor")

    with pytest.raises(GradientUnavailable, match="a second derivative along 'y' may be asked for, and the reference"):
        SECOND[way](op)


def test_a_cut_of_one_of_two_results_raises():
    op = custom_op(
        "cut::two", lambda x: (x * 2, x.detach() * 2), schema="(Tensor x) -> (Tensor, Tensor)", reference=True
    )

    assert [2.0, 2.0, 2.0] == eager(lambda x: op(x)[0]).tolist()
    with pytest.raises(GradientUnavailable, match="the reference is cut from it"):
        eager(lambda x: sum(op(x)))


@each("function", [torch.zeros_like, lambda x: (x > 0).to(x.dtype)], ids=["constant", "step"])
@each("way", WAYS)
def test_a_result_that_depends_on_no_input_raises(function, way):
    with pytest.raises(Exception, match="no result of the reference depends on it"):
        WAYS[way](declare(function))


def test_a_result_of_nothing_has_a_gradient():
    op = declare(lambda x: x.new_zeros(3) if x.numel() == 0 else x * 2)
    x = torch.ones(0, requires_grad=True)

    assert (None,) == torch.autograd.grad(op(x).sum(), x, allow_unused=True)


def test_the_messages():
    assert_expected_inline(
        message(lambda: eager(declare(CUTS["NumPy"]))),
        """\
GradientUnavailable: cut::op: the gradient of 'x' is asked for, and the reference is cut from it
  expected   differentiable PyTorch operations from 'x' to the result
  found      torch.Tensor.detach, torch.Tensor.numpy
  rule       FILE.py:LINE, reference
  declared   FILE.py:LINE
  do         register_backward, or declare what has no gradient: non_differentiable=('x',)""",
    )
    assert_expected_inline(
        message(lambda: eager(declare(torch.zeros_like))),
        """\
GradientUnavailable: cut::op: the gradient of 'x' is asked for, and no result of the reference depends on it
  expected   differentiable PyTorch operations from 'x' to the result
  found      results that do not require a gradient
  rule       builtin_function_or_method zeros_like, reference
  declared   builtin_function_or_method zeros_like
  do         register_backward, or declare what has no gradient: non_differentiable=('x',)""",
    )


def declared_tensor(x: Tensor) -> Tensor:
    return x.detach() * 2


def test_a_declared_zero_is_not_asked_for():
    op = custom_op("cut::declared", declared_tensor, reference=True, non_differentiable=("x",))

    assert not op(X.clone().requires_grad_()).requires_grad


@custom_op("cut::halved_grad", reference=True)
def halved_grad(grad: Tensor, x: Tensor) -> Tensor:
    """The backward of `halved`, whose own backward runs while the tangent of `halved` is derived."""
    return grad * x


@custom_op("cut::halved", reference=False)
def halved(x: Tensor) -> Tensor:
    return x * x / 2


halved.register_fake(torch.empty_like)
halved.register_backward(lambda grad, x: halved_grad(grad, x))


def test_a_backward_that_calls_an_op_with_a_reference_has_tangents():
    x, tangent = torch.rand(3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)

    torch.testing.assert_close(torch.func.jvp(halved, (x,), (tangent,)), (x * x / 2, tangent * x))
