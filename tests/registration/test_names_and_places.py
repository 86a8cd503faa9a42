"""Refuse functions whose parameters are in the wrong order, and read results with names by their names."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from tables import each
from torch import Tensor
from torch.utils import _pytree

from custom_autograd import DeclarationError, GradientError, RegistrationError, custom_op

X, Y = (torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in (2.0, 5.0))


def product(a: Tensor, b: Tensor) -> Tensor:
    return a * a * b


def with_default(a: Tensor, b: Tensor, eps: float = 1.0) -> Tensor:
    return a * a * b * eps


class Pair(NamedTuple):
    u: Tensor
    v: Tensor


class Riap(NamedTuple):
    v: Tensor
    u: Tensor


@dataclass
class Both:
    u: Tensor
    v: Tensor


def contained(a: Tensor, b: Tensor, p: Pair) -> Tensor:
    return a * a * b + p.u - p.v


PERMUTED = [
    (product, "register_vmap", lambda info, in_dims, b, a: (product(a, b), 0)),
    (product, "register_fake", lambda b, a: torch.empty_like(a)),
    (product, "register_reference", lambda b, x: product(x, b)),
    (with_default, "register_vmap", lambda info, in_dims, b, a: (product(a, b), 0)),
    (with_default, "register_fake", lambda b, a: torch.empty_like(a)),
    (contained, "register_fake", lambda b, a, p: torch.empty_like(a)),
    (contained, "register_reference", lambda b, a, p: contained(a, b, p)),
    (contained, "register_vmap", lambda info, in_dims, b, a, p: (contained(a, b, p), 0)),
]
OPEN = [
    (product, "register_fake", lambda *args: torch.empty_like(args[0])),
    (product, "register_fake", lambda first, second: torch.empty_like(first)),
    (product, "register_fake", lambda a, *rest: torch.empty_like(a)),
    (with_default, "register_fake", lambda a, b: torch.empty_like(a)),
    (contained, "register_reference", lambda x, y, p: contained(x, y, p)),
]


@each(("function", "register", "rule"), PERMUTED)
def test_a_parameter_in_the_place_of_another_argument_is_refused(function, register, rule):
    op = custom_op("places::permuted", function, replace=True)

    with pytest.raises(RegistrationError, match="takes the op's arguments in another order"):
        getattr(op, register)(rule)


@pytest.mark.parametrize(("function", "register", "rule"), OPEN)
def test_parameters_with_names_of_their_own_are_taken(function, register, rule):
    op = custom_op("places::open", function, replace=True)

    getattr(op, register)(rule)


def test_kernels_of_ops_with_containers_and_of_a_written_schema_are_looked_at_too():
    op = custom_op("places::contained", contained, replace=True)

    with pytest.raises(RegistrationError, match="takes the op's arguments in another order"):
        op.register_kernel("cpu")(lambda b, a, p: contained(a, b, p))
    with pytest.raises(RegistrationError, match="takes the op's arguments in another order"):
        custom_op("places::written", lambda b, a: product(a, b), schema="(Tensor a, Tensor b) -> Tensor")


def test_a_drop_in_backward_that_exchanges_the_names_of_gradients_is_refused():
    op = custom_op("places::drop_in", lambda x: (x * 2, x * 3), schema="(Tensor x) -> (Tensor u, Tensor v)")

    with pytest.raises(RegistrationError, match="the backward takes the op's arguments in another order"):
        op.register_autograd(lambda ctx, grad_v, grad_u: 2 * grad_u + 3 * grad_v)


def test_the_error_of_an_order_shows_both():
    op = custom_op("places::permuted", product, replace=True)

    assert_expected_inline(
        message(lambda: op.register_vmap(lambda info, in_dims, b, a: (product(a, b), 0))),
        """\
RegistrationError: places::permuted: the vmap rule takes the op's arguments in another order
  expected   (info, in_dims, a, b)
  found      (info, in_dims, b, a)
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         put the parameters in the order of the schema""",
    )


def named(x: Tensor) -> Pair:
    return Pair(x * 2, x * 3)


def in_dataclass(x: Tensor) -> Both:
    return Both(x * 2, x * 3)


@pytest.mark.parametrize("function", [named, in_dataclass])
def test_outputs_may_not_exchange_the_names_that_results_have(function):
    with pytest.raises(DeclarationError, match="outputs= calls the result 'u' by the name of another one, 'v'"):
        custom_op("places::outputs", function, outputs=("v", "u"), replace=True)

    custom_op("places::outputs", function, outputs=("first", "second"), replace=True)


def test_outputs_may_not_exchange_the_names_of_a_written_schema():
    schema = "(Tensor x) -> (Tensor u, Tensor v)"

    with pytest.raises(DeclarationError, match="outputs= calls the result 'u' by the name of another one, 'v'"):
        custom_op("places::schema", lambda x: (x * 2, x * 3), schema=schema, outputs=("v", "u"))


def test_register_grad_names_an_input_once():
    op = custom_op("places::twice", product, replace=True)

    with pytest.raises(RegistrationError, match="register_grad names 'a' twice"):
        op.register_grad("a", "a")


class OfB(NamedTuple):
    b: Tensor
    a: Tensor


@pytest.mark.usefixtures("both_calls")
def test_gradients_in_a_namedtuple_go_by_its_fields():
    op = custom_op("places::grads", product, replace=True)
    op.register_backward(lambda grad, a, b: OfB(a=2 * grad * a * b, b=grad * a * a))

    for _ in range(3):
        assert (20, 4) == tuple(grad.item() for grad in torch.autograd.grad(op(X, Y), (X, Y)))


@pytest.mark.usefixtures("both_calls")
@pytest.mark.parametrize("requires_grad", [False, True])
def test_what_a_kernel_returns_in_another_namedtuple_goes_by_its_fields(requires_grad):
    op = custom_op("places::results", lambda x: Riap(u=x * 2, v=x * 3), schema="(Tensor x) -> (Tensor u, Tensor v)")
    op.register_backward(lambda grad_u, grad_v: 2 * grad_u + 3 * grad_v)
    x = torch.ones(1, requires_grad=requires_grad)

    assert [(2, 3)] * 4 == [tuple(one.item() for one in op(x)) for _ in range(4)]


def test_tangents_and_batched_results_in_a_namedtuple_go_by_their_fields():
    op = custom_op("places::transforms", named, replace=True)
    op.register_jvp(lambda tangent_x: Riap(u=2 * tangent_x, v=3 * tangent_x))
    op.register_vmap(lambda info, in_dims, x: (Riap(u=2 * x, v=3 * x), Riap(u=in_dims[0], v=in_dims[0])))
    x = torch.ones(2)

    tangents = torch.func.jvp(op, (x,), (x,))[1]
    batched = torch.vmap(op)(x)

    torch.testing.assert_close(((2 * x, 3 * x), (2 * x, 3 * x)), (tuple(tangents), tuple(batched)))


def test_the_gradient_of_a_container_goes_by_fields():
    op = custom_op("places::container", contained, replace=True)
    op.register_backward(lambda grad, a, b: {"a": 2 * grad * a * b, "b": grad * a * a, "p": Riap(u=grad, v=-grad)})
    u, v = X.detach().requires_grad_(), Y.detach().requires_grad_()

    assert (1, -1) == tuple(grad.item() for grad in torch.autograd.grad(op(X, Y, Pair(u, v)), (u, v)))


class Bag:
    """A registered pytree node, whose context is the order of its keys."""

    def __init__(self, **items):
        self.items = items


_pytree.register_pytree_node(
    Bag,
    lambda bag: (list(bag.items.values()), tuple(bag.items)),
    lambda values, keys: Bag(**dict(zip(keys, values, strict=True))),
    serialized_type_name="tests.registration.test_names_and_places.Bag",
)


def test_the_gradient_of_a_registered_node_is_a_node_of_the_same_context():
    def function(x: Tensor, bag: Bag) -> Tensor:
        return x * bag.items["u"] * bag.items["v"] ** 2

    op = custom_op("places::node", function, replace=True)

    @op.register_backward
    def _(grad, x, bag):
        u, v = bag.items["u"], bag.items["v"]
        return {"x": grad * u * v * v, "bag": Bag(u=grad * x * v * v, v=grad * x * u * 2 * v)}

    u, v = X.detach().requires_grad_(), Y.detach().requires_grad_()
    x = torch.tensor([3.0], dtype=torch.float64)

    assert (75, 60) == tuple(grad.item() for grad in torch.autograd.grad(op(x, Bag(u=u, v=v)), (u, v)))
    with pytest.raises(GradientError, match=r"a Bag like the argument, with the context \('v', 'u'\)"):
        op(x, Bag(v=v, u=u)).backward()


def test_a_tuple_of_tangents_is_refused_where_the_op_returns_what_it_writes_in_an_order_of_its_own():
    def body(a, b, x):
        a.add_(x * 2)
        b.add_(x * 3)
        return x * 7, b, a

    schema = "(Tensor(a!) a, Tensor(b!) b, Tensor x) -> (Tensor o, Tensor(b!) b, Tensor(a!) a)"
    op = custom_op("places::written_jvp", body, schema=schema, mutates_args=("b", "a"), replace=True)
    op.register_jvp(lambda tangent_x, tangent_a, tangent_b: (tangent_x * 7, tangent_b, tangent_a))
    x = torch.ones(1)

    with pytest.raises(
        GradientError, match="the jvp returns a tuple, and the op returns what it writes to in an order"
    ):
        torch.func.jvp(lambda x: op(x * 0, x * 0, x), (x,), (x,))

    op.register_jvp(
        lambda tangent_x, tangent_a, tangent_b: {
            "o": tangent_x * 7, "b": tangent_b + 3 * tangent_x, "a": tangent_a + 2 * tangent_x
        },
        replace=True,
    )  # fmt: skip
    assert (7, 3, 2) == tuple(one.item() for one in torch.func.jvp(lambda x: op(x * 0, x * 0, x), (x,), (x,))[1])


def test_a_jvp_of_an_op_with_containers_may_return_hidden_tangents_by_name():
    def body(x: Tensor, g: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return x * g["u"], x * 2

    op = custom_op("places::hidden_tangents", body, outputs=("out", "h"), hidden=("h",), replace=True)
    op.register_jvp(lambda tangent_x, tangent_g, x, g: {"out": tangent_x * g["u"], "h": tangent_x * 2})
    x = torch.tensor([3.0])

    assert 5 == torch.func.jvp(lambda x: op(x, {"u": torch.tensor([5.0])}), (x,), (torch.ones(1),))[1].item()


@pytest.mark.usefixtures("both_calls")
def test_a_writing_op_whose_only_output_is_hidden_returns_nothing():
    def body(x: Tensor) -> Tensor:
        old = x.clone()
        x.mul_(2)
        return old

    op = custom_op("places::all_hidden", body, mutates_args=("x",), outputs=("old",), hidden=("old",), replace=True)

    assert [()] * 5 == [op(torch.ones(2)) for _ in range(5)]
