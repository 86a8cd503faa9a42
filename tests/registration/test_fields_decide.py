"""A NamedTuple that user code returns is read by the names of its fields everywhere."""

from typing import NamedTuple

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import CustomAutogradError, custom_op

pytestmark = pytest.mark.usefixtures("both_calls")


class BA(NamedTuple):
    b: Tensor
    a: Tensor


class One(NamedTuple):
    out: Tensor


class OneList(NamedTuple):
    out: list[Tensor]


def ones(*shape):
    return torch.ones(*shape, dtype=torch.float64)


def two_results(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x * 3


def one_sine():
    def sine(x: Tensor) -> One:
        return One(x.sin())

    return custom_op("fields::one", sine, reference=True, replace=True)


def test_a_reference_may_return_its_results_in_another_order():
    op = custom_op("fields::reference", two_results, outputs=("a", "b"), replace=True)
    op.register_reference(lambda x: BA(b=x * 3, a=x * 2))
    x = ones(2).requires_grad_()

    assert [2, 2] == torch.autograd.grad(op(x)[0].sum(), x)[0].tolist()
    assert [2, 2] == torch.func.grad(lambda x: op(x)[0].sum())(ones(2)).tolist()
    assert ([2, 2], [3, 3]) == tuple(one.tolist() for one in torch.func.jvp(op, (ones(2),), (ones(2),))[1])
    assert ([2, 2], [3, 3]) == tuple(one.tolist() for one in torch.vmap(op)(ones(2)))


def test_second_derivatives_through_a_hidden_output_of_such_a_reference():
    class HiddenFirst(NamedTuple):
        h: Tensor
        out: Tensor

    op = custom_op(
        "fields::hidden", lambda x: (x.exp() * x, x.exp()), schema="(Tensor x) -> (Tensor out, Tensor h)",
        hidden=("h",), replace=True,
    )  # fmt: skip
    op.register_reference(lambda x: HiddenFirst(out=x.exp() * x, h=x.exp()))
    op.register_backward(lambda grad, h, x: grad * (h * x + h))
    x = ones(1).requires_grad_()
    (first,) = torch.autograd.grad(op(x), x, create_graph=True)

    torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], 3 * x.detach().exp())


def test_gradients_may_be_called_as_incoming_ones_are():
    class Gradients(NamedTuple):
        grad_w: Tensor
        grad_x: Tensor

    op = custom_op("fields::product", lambda x, w: x * w, schema="(Tensor x, Tensor w) -> Tensor", replace=True)
    op.register_backward(lambda grad, x, w: Gradients(grad_w=grad * x, grad_x=grad * w))
    x, w = (2 * ones(1)).requires_grad_(), (3 * ones(1)).requires_grad_()

    assert [3, 2] == [grad.item() for grad in torch.autograd.grad(op(x, w), (x, w))]


def test_tangents_may_be_called_as_incoming_ones_are():
    class Tangents(NamedTuple):
        tangent_b: Tensor
        tangent_a: Tensor

    op = custom_op("fields::tangents", two_results, outputs=("a", "b"), replace=True)
    op.register_jvp(lambda tangent_x: Tangents(tangent_a=tangent_x * 2, tangent_b=tangent_x * 3))

    assert ([2], [3]) == tuple(one.tolist() for one in torch.func.jvp(op, (ones(1),), (ones(1),))[1])


def test_results_of_torch_go_by_their_fields():
    op = custom_op(
        "fields::sorted", torch.sort, schema="(Tensor x) -> (Tensor indices, Tensor values)", replace=True,
        non_differentiable=("indices",),
    )  # fmt: skip

    for _ in range(3):
        indices, values = op(torch.tensor([3.0, 1.0, 2.0]))
        assert ([1, 2, 0], [1, 2, 3]) == (indices.tolist(), values.tolist())


def test_a_hidden_output_in_a_namedtuple_stays_hidden():
    def write(m: Tensor) -> One:
        before = m * 1
        m.mul_(2)
        return One(before)

    op = custom_op("fields::write", write, mutates_args=("m",), hidden=("out",), replace=True)

    assert [(), (), (), ()] == [op(ones(2)) for _ in range(4)]


def test_one_field_is_batched_by_the_reference():
    op = one_sine()
    x = torch.linspace(0, 1, 6, dtype=torch.float64).view(2, 3)

    torch.testing.assert_close(torch.vmap(lambda x: op(x).out)(x), x.sin())
    tangent = torch.vmap(lambda x: torch.func.jvp(lambda x: op(x).out, (x,), (x,))[1])(x)
    torch.testing.assert_close(tangent, x.cos() * x)
    torch.testing.assert_close(torch.func.grad(lambda x: op(x).out.sum())(x), x.cos())


class XOther(NamedTuple):
    x: Tensor
    other: Tensor


def refusals():
    """Messages, and the calls that raise them: a field has the name of another place, and the other no such name."""
    max_other = custom_op(
        "fields::max_other", torch.aminmax, schema="(Tensor x) -> (Tensor max, Tensor other)", replace=True
    )
    yield "the default kernel, .*, returns a aminmax with 'max' in another place", lambda: max_other(ones(3))

    product = custom_op("fields::refused", lambda y, x: x * y, schema="(Tensor y, Tensor x) -> Tensor", replace=True)
    product.register_backward(lambda grad, x, y: XOther(x=grad * y, other=grad * x))
    y, x = ones(1).requires_grad_(), ones(1).requires_grad_()
    yield "the backward returns a XOther with 'x' in another place", lambda: product(y, x).sum().backward()

    two = custom_op(
        "fields::two", lambda y: (y * 2, y * 3), schema="(Tensor y) -> (Tensor one, Tensor x)", replace=True
    )
    two.register_reference(lambda y: XOther(y * 2, y * 3))
    two.register_vmap(lambda info, in_dims, y: (XOther(y * 2, y * 3), (0, 0)))
    two.register_jvp(lambda tangent_y: XOther(tangent_y * 2, tangent_y * 3))
    yield "the vmap rule returns a XOther with 'x' in another place", lambda: torch.vmap(two)(ones(2, 3))
    yield "the jvp returns a XOther with 'x' in another place", lambda: torch.func.jvp(two, (ones(1),), (ones(1),))
    recorded = two(ones(1).requires_grad_())
    yield "the reference returns a XOther with 'x' in another place", lambda: recorded[0].sum().backward()


def test_a_field_in_another_place_among_other_fields_is_refused():
    for message, work in refusals():
        for _ in range(3):
            with pytest.raises(CustomAutogradError, match=message) as found:
                work()
            assert "do         name the fields so, or return a plain tuple" in str(found.value)


def test_a_vmap_rule_may_return_what_the_kernel_returns():
    op = one_sine()
    op.register_vmap(lambda info, in_dims, x: (One(x.sin()), One(in_dims[0])))
    x = ones(2, 3)

    torch.testing.assert_close(torch.vmap(op)(x).out, x.sin())


def test_one_field_may_be_a_list():
    def both(x: Tensor) -> OneList:
        return OneList([x * 2, x * 3])

    op = custom_op("fields::list", both, reference=True, replace=True)
    x = ones(2).requires_grad_()

    for _ in range(3):
        assert [[2, 2], [3, 3]] == [one.tolist() for one in op(x).out]
    assert [3, 3] == torch.autograd.grad(op(x).out[1].sum(), x)[0].tolist()
    assert [[[2, 2]], [[3, 3]]] == [one.tolist() for one in torch.vmap(lambda x: op(x).out)(ones(1, 2))]


@each(
    ("outputs", "expected"),
    [("min max", (0, 2)), ("max min", (2, 0)), ("least greatest", (0, 2)), ("min other", (0, 2))],
)
def test_results_of_torch_go_by_place_if_they_have_other_fields(outputs, expected):
    names = outputs.split()
    schema = f"(Tensor x) -> ({', '.join(f'Tensor {name}' for name in names)})"
    op = custom_op("fields::aminmax", torch.aminmax, schema=schema, replace=True)

    for _ in range(4):
        assert expected == tuple(one.item() for one in op(torch.arange(3)))
