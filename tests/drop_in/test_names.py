"""Arguments may have any name, and an op may have an overload name."""

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from torch import Tensor

from custom_autograd import RegistrationError, custom_op

pytestmark = pytest.mark.usefixtures("fresh_compiler")

X = torch.tensor([1.0, 2.0], dtype=torch.float64)


@custom_op("naming::f_backward")
def f_backward(grad_output: Tensor, x: Tensor) -> Tensor:
    return grad_output * x * x


f_backward.register_fake(lambda grad_output, x: torch.empty_like(x))
f_backward.register_autograd(
    lambda ctx, grad: (grad * ctx.saved_tensors[1] ** 2, 2 * grad * ctx.saved_tensors[0] * ctx.saved_tensors[1]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@custom_op("naming::all_taken", reference=True)
def all_taken(grad: Tensor, needs: Tensor, meta: Tensor, tangent_grad: Tensor, output: Tensor) -> Tensor:
    return grad * needs + meta * tangent_grad * output


def test_a_backward_can_be_an_op_of_its_own():
    found = torch.func.jacrev(f_backward, argnums=(0, 1))(X, X)
    tangent = torch.func.jvp(f_backward, (X, X), (X, X))[1]

    torch.testing.assert_close(found, (torch.diag(X * X), torch.diag(2 * X * X)))
    torch.testing.assert_close(tangent, 3 * X**3)
    torch.testing.assert_close(torch.compile(f_backward, backend="aot_eager", fullgraph=True)(X, X), X**3)


def test_an_op_whose_arguments_have_the_names_of_rules_is_differentiated_by_its_reference():
    found = torch.func.jacrev(all_taken, argnums=(0, 1, 2, 3, 4))(X, 2 * X, 3 * X, 4 * X, 5 * X)

    expected = [2 * X, X, 20 * X * X, 15 * X * X, 12 * X * X]
    torch.testing.assert_close(found, tuple(map(torch.diag, expected)))
    assert ("output_",) == all_taken.schema.output_names


def test_a_rule_can_name_an_input_that_only_looks_like_a_gradient():
    op = custom_op("naming::looks", lambda grad_q, x: grad_q * x, schema="(Tensor grad_q, Tensor x) -> Tensor")
    op.register_backward(lambda grad, grad_q, x: {"grad_q": grad * x, "x": grad * grad_q})
    op.register_jvp(lambda grad_q, x, tangent_grad_q, tangent_x: tangent_grad_q * x + grad_q * tangent_x)

    torch.testing.assert_close(torch.func.grad(lambda g: op(g, X).sum())(3 * X), X)
    torch.testing.assert_close(torch.func.jvp(op, (3 * X, X), (X, X))[1], 4 * X * X)


def test_an_output_of_another_name_tells_the_gradients_apart():
    op = custom_op("naming::apart", f_backward.__wrapped__, outputs=("y",))
    op.register_backward(
        lambda grad_y, grad_output, x: {"grad_output": grad_y * x * x, "x": 2 * grad_y * grad_output * x}
    )

    torch.testing.assert_close(torch.func.grad(lambda x: op(X, x).sum())(X), 2 * X * X)


def test_a_rule_whose_parameter_names_two_things_is_refused():
    op = custom_op("naming::refused", f_backward.__wrapped__)

    assert_expected_inline(
        message(lambda: op.register_backward(lambda grad, grad_output, x: None)),
        """\
RegistrationError: naming::refused: the backward has a parameter 'grad_output' that names two things
  expected   a parameter with one meaning
  found      the argument 'grad_output', and the incoming gradient of 'output'
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         rename the argument or, for a gradient, the output (outputs=); register_autograd binds no names""",
    )


def test_a_jvp_whose_parameter_names_two_things_is_refused():
    op = custom_op("naming::refused_jvp", lambda x, tangent_x: x * 1, schema="(Tensor x, Tensor tangent_x) -> Tensor")
    with pytest.raises(RegistrationError, match="has a parameter 'tangent_x' that names two things"):
        op.register_jvp(lambda tangent_x, tangent_tangent_x: tangent_x)


@pytest.mark.parametrize("name", ["grad", "needs", "meta"])
def test_a_rule_that_does_not_name_it_is_accepted(name):
    op = custom_op(f"naming::unnamed_{name}", lambda x: x * 2, schema=f"(Tensor {name}) -> Tensor")
    op.register_backward(lambda grad_output: grad_output * 2)

    torch.testing.assert_close(torch.func.grad(lambda x: op(x).sum())(X), torch.full_like(X, 2.0))


@custom_op("naming::scale")
def scale(x: Tensor) -> Tensor:
    return x * 2


@custom_op("naming::scale.by")
def scale_by(x: Tensor, factor: float) -> Tensor:
    return x * factor


for _op in (scale, scale_by):
    _op.register_fake(lambda x, *factor: torch.empty_like(x))
scale_by.register_backward(lambda grad, factor: grad * factor)


def test_an_overload_is_an_op_of_its_own():
    assert "naming::scale.by" == scale_by.name == scale_by._qualname
    assert torch.ops.naming.scale.by is scale_by.overload
    torch.testing.assert_close(scale(X), 2 * X)
    torch.testing.assert_close(scale_by(X, 3.0), 3 * X)


def test_the_packet_chooses_between_overloads():
    torch.testing.assert_close(torch.ops.naming.scale(X), 2 * X)
    torch.testing.assert_close(torch.ops.naming.scale(X, 3.0), 3 * X)


def test_an_overload_has_every_transform():
    torch.testing.assert_close(torch.func.grad(lambda x: scale_by(x, 3.0).sum())(X), torch.full_like(X, 3.0))
    torch.testing.assert_close(torch.vmap(lambda x: scale_by(x, 3.0))(X), 3 * X)
    torch.testing.assert_close(torch.compile(lambda x: scale_by(x, 3.0), backend="aot_eager")(X), 3 * X)


def test_a_rule_registered_by_the_name_of_an_overload_is_adopted():
    op = custom_op("naming::scale.late", lambda x, n: x * n, schema="(Tensor x, int n) -> Tensor")
    torch.library.register_fake("naming::scale.late", lambda x, n: torch.empty_like(x))

    assert op.capabilities()["fake"].startswith("registered")
    assert "missing: register_fake" != op.capabilities()["fake"]


def test_the_variants_of_an_overload_are_overloads():
    op = custom_op("naming::grow.by", lambda x, n: x * n, schema="(Tensor x, int n) -> Tensor", reference=True)
    x = X.clone()
    op.inplace(x, 3)

    assert "naming::grow_.by" == op.inplace.name
    torch.testing.assert_close(x, 3 * X)


def test_a_replaced_overload_keeps_running():
    old = custom_op("naming::swap.by", lambda x: x * 2, schema="(Tensor x) -> Tensor")
    new = custom_op("naming::swap.by", lambda x: x * 3, schema="(Tensor x) -> Tensor", replace=True)

    torch.testing.assert_close((old(X), new(X), torch.ops.naming.swap.by(X)), (2 * X, 3 * X, 3 * X))
