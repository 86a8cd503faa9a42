"""The order in which a rule names what it takes says nothing: only the names do. And no gradient is left out."""

import itertools

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from tables import each
from torch import Tensor

from custom_autograd import GradientUnavailable, RegistrationError, custom_op

ORDERS = list(itertools.permutations(("grad", "a", "b")))


def product(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return a * a * b * c


def inputs():
    return [torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in (0.5, 2.0, 3.0)]


def with_parameters(names, body):
    """A function of these parameters, in this order."""
    return eval(f"lambda {', '.join(names)}: {body}")


def op_of_c(names):
    op = custom_op("names::of_c", product, reference=True, replace=True)
    op.register_grad("c")(with_parameters(names, "grad * a * a * b"))
    return op


@each("names", ORDERS)
def test_the_reference_gives_each_gradient_to_its_own_input(names):
    op = op_of_c(names)

    for wanted in itertools.chain.from_iterable(itertools.combinations(range(3), n) for n in (1, 2, 3)):
        ours, theirs = (
            torch.autograd.grad(function(*given), [given[i] for i in wanted])
            for function, given in ((op, inputs()), (product, inputs()))
        )
        torch.testing.assert_close(ours, theirs)


@each("names", ORDERS)
def test_derived_transforms_give_each_derivative_to_its_own_input(names):
    op, values = op_of_c(names), tuple(value.detach() for value in inputs())
    tangents = tuple(torch.full_like(value, weight) for weight, value in enumerate(values, start=1))

    def of(function):
        def scalar(*given):
            return function(*given).sum()

        return (
            torch.func.grad(scalar, (0, 1, 2))(*values),
            torch.func.hessian(scalar, (0, 1, 2))(*values),
            torch.func.jvp(function, values, tangents)[1],
        )

    torch.testing.assert_close(of(op), of(product))


def test_a_rule_of_forward_mode_does_not_decide_whose_gradients_the_reference_returns():
    op = custom_op("names::forward", product, reference=True, replace=True)
    op.register_jvp(
        lambda tangent_c, c, b, a, tangent_b, tangent_a: (
            2 * a * b * c * tangent_a + a * a * c * tangent_b + a * a * b * tangent_c
        )
    )

    ours, theirs = (torch.autograd.grad(f(*given), given) for f, given in ((op, inputs()), (product, inputs())))

    torch.testing.assert_close(ours, theirs)


@each("names", list(itertools.permutations(("grad_out", "w", "x", "aux"))))
def test_second_derivatives_through_a_hidden_output(names):
    def body(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        aux = x.exp()
        return aux * w, aux

    op = custom_op("names::hidden", body, outputs=("out", "aux"), hidden=("aux",), reference=True, replace=True)
    op.register_backward(with_parameters(names, "{'x': grad_out * aux * w, 'w': grad_out * aux}"))

    def second(function):
        x, w = inputs()[:2]
        grads = torch.autograd.grad(function(x, w), (x, w), create_graph=True)
        return [torch.autograd.grad(grad, (x, w), retain_graph=True, materialize_grads=True) for grad in grads]

    torch.testing.assert_close(second(op), second(lambda x, w: body(x, w)[0]))


def two_results(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return x * w, x.sin() * w


@pytest.mark.parametrize("has_reference", [False, True], ids=["no reference", "reference"])
@pytest.mark.usefixtures("both_calls")
def test_a_gradient_that_no_rule_names_is_refused(has_reference):
    op = custom_op("names::two", two_results, outputs=("out", "aux"), reference=has_reference, replace=True)
    op.register_backward(lambda grad_out, x, w: (grad_out * w, grad_out * x))
    x, w = inputs()[:2]

    for _ in range(3):  # the first call of a kind, and later ones
        torch.testing.assert_close((w, x), torch.autograd.grad(op(x, w)[0], (x, w)))
        for wanted in ((x, w), (x,)):
            with pytest.raises(GradientUnavailable, match="the gradient of 'aux' arrives, and no rule names it"):
                torch.autograd.grad(sum(op(x, w)), wanted)


def test_the_error_says_which_name_is_missing():
    op = custom_op("names::two", two_results, outputs=("out", "aux"), replace=True)
    op.register_grad("x")(lambda grad_out, w: grad_out * w)
    op.register_grad("w")(lambda grad_out, x: grad_out * x)
    x, w = inputs()[:2]

    assert_expected_inline(
        message(lambda: sum(op(x, w)).backward()),
        """\
GradientUnavailable: names::two: the gradient of 'aux' arrives, and no rule names it
  expected   'grad_aux' among the parameters of a rule
  found      'grad_out', 'w', 'grad_out', 'x'
  rule       FILE.py:LINE, FILE.py:LINE
  declared   FILE.py:LINE
  do         take 'grad_aux' in the rule and add its share, or declare the op with non_differentiable=('aux',)""",
    )


def test_a_mutated_argument_whose_gradient_no_rule_names_is_refused():
    def body(x: Tensor, w: Tensor) -> Tensor:
        out = x * w
        x.mul_(2)
        return out

    op = custom_op("names::written", body, mutates_args=("x",), outputs=("out",), replace=True)
    op.register_backward(lambda grad_out, w: {"x": grad_out * w, "w": None})
    x, w = inputs()[:2]

    own = x.clone()
    result = op(own, w.detach()) + own

    with pytest.raises(GradientUnavailable, match="the gradient of 'x' arrives, and no rule names it"):
        result.backward()


def test_a_rule_of_some_inputs_need_not_name_a_result_that_they_do_not_reach():
    def body(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x * w, x.sin()

    op = custom_op("names::some", body, outputs=("out", "aux"), reference=True, replace=True)
    op.register_grad("w")(lambda grad_out, x: grad_out * x)
    ours, theirs = (
        torch.autograd.grad(sum(f(*given)), given) for f, given in ((op, inputs()[:2]), (body, inputs()[:2]))
    )

    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("rule", [lambda x, w: (2 * x, w), lambda needs, meta: None, lambda out: out, lambda: None])
def test_a_rule_that_takes_nothing_incoming_is_refused(rule):
    """It would return the same whatever arrives."""
    op = custom_op("names::without", two_results, outputs=("out", "aux"), replace=True)

    with pytest.raises(RegistrationError, match="names::without: the backward takes no incoming gradient"):
        op.register_backward(rule)
    with pytest.raises(RegistrationError, match="the grad x, w takes no incoming gradient"):
        op.register_grad("x", "w")(rule)
    with pytest.raises(RegistrationError, match="names::without: the jvp takes no incoming tangent"):
        op.register_jvp(rule)


def test_a_rule_whose_gradients_are_always_zero_returns_none():
    op = custom_op("names::zero", two_results, outputs=("out", "aux"), replace=True)
    op.register_backward(lambda grad_out, grad_aux: (None, None))
    x, w = inputs()[:2]

    assert (None, None) == torch.autograd.grad(sum(op(x, w)), (x, w), allow_unused=True)
