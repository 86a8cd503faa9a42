"""Forward mode over the whole table, by value: registered, derived or raised; never silently zero."""

import pytest
import torch
from tables import each
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.functional import jacobian
from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize
from torch.testing import assert_close

from custom_autograd import GradientError, GradientUnavailable, custom_op
from ops import TABLE

TWICE = {name: row for name, row in TABLE.items() if row.has_second_order}
ROWS = each("row", TWICE.values(), ids=TWICE)
NESTINGS = {
    "hessian": hessian,
    "jacrev of jacrev": lambda f: jacrev(jacrev(f)),
    "jacfwd of jacfwd": lambda f: jacfwd(jacfwd(f)),
    "jacfwd of jacrev": lambda f: jacfwd(jacrev(f)),
    "jacrev of jacfwd": lambda f: jacrev(jacfwd(f)),
    "jacfwd of grad": lambda f: jacfwd(grad(f)),
}


def tangents(row):
    return tuple(tensor.sin() for tensor in row.inputs())


def of_one_input(f, row):
    first, *rest = row.inputs()
    return jvp(lambda x: f(x, *rest), (first,), (first.sin(),))


def of_batches(f, row):
    """A jacobian whose columns are the tangents of one call."""
    return jacobian(row.loss(f), row.inputs(), vectorize=True, strategy="forward-mode")


def of_duals(f, row):
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(*pair) for pair in zip(row.inputs(), tangents(row), strict=True)]
        return [forward_ad.unpack_dual(output).tangent for output in f(*duals)]


def of_the_gradient_of_duals(f, row):
    inputs = row.inputs(requires_grad=True)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(*pair) for pair in zip(inputs, tangents(row), strict=True)]
        found = torch.autograd.grad(row.loss(f)(*duals), inputs, create_graph=True)
        return [forward_ad.unpack_dual(gradient).tangent.detach() for gradient in found]


WAYS = {
    "func.jvp": lambda f, row: jvp(f, row.inputs(), tangents(row)),
    "func.jvp of one input": of_one_input,
    "dual numbers": of_duals,
    "a backward of dual numbers": of_the_gradient_of_duals,
    "tangents of a batch": of_batches,
    "func.jacfwd": lambda f, row: jacfwd(f, tuple(range(len(row.shapes))))(*row.inputs()),
}


@ROWS
@each("way", WAYS)
def test_tangents(row, way):
    assert_close(WAYS[way](row.op, row), WAYS[way](row.reference, row))


CELLS = {
    f"{name}, {nesting}": (row, NESTINGS[nesting])
    for name, row in TWICE.items()
    for nesting in NESTINGS
    if not (row.mutates and nesting == "jacfwd of jacfwd")  # see the test of what torch refuses
}


@each(("row", "nesting"), CELLS.values(), ids=CELLS)
def test_second_derivatives(row, nesting):
    first, *rest = row.inputs()

    actual = nesting(lambda x: row.loss(row.op)(x, *rest))(first)
    assert_close(actual, nesting(lambda x: row.loss(row.reference)(x, *rest))(first))


@each("row", [row for row in TWICE.values() if not row.mutates],
                         ids=[name for name, row in TWICE.items() if not row.mutates])  # fmt: skip
def test_third_order_forward(row):
    first, *rest = row.inputs()

    def third(f):
        return jacfwd(jacfwd(jacfwd(lambda x: row.loss(f)(x, *rest))))(first)

    assert_close(third(row.op), third(row.reference))


@each("row", [row for row in TWICE.values() if not row.mutates],
                         ids=[name for name, row in TWICE.items() if not row.mutates])  # fmt: skip
def test_linearize(row):
    outputs, push = linearize(row.op, *row.inputs())

    assert_close((outputs, push(*tangents(row))), jvp(row.reference, row.inputs(), tangents(row)))


@pytest.mark.parametrize("write", [TABLE["in-place"].op, lambda x, y: ((x * 2).mul_(y),)], ids=["ours", "torch's own"])
def test_torch_refuses_to_write_in_nested_forward_mode(write):
    """Its symbolic zero tangents cannot be written to: loudly, for its own in-place operations as well."""
    x, y = TABLE["in-place"].inputs()

    with pytest.raises(RuntimeError, match="ZeroTensors are immutable"):
        jacfwd(jacfwd(lambda x: write(x, y)[0].sum()))(x)


@custom_op("jvp::half_fixed")
def half_fixed(x: Tensor) -> tuple[Tensor, Tensor]:
    return x**3, x**2


def _save_and_mark(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.mark_non_differentiable(output[1])


half_fixed.register_autograd(lambda ctx, cube, _: 3 * cube * ctx.saved_tensors[0] ** 2, setup_context=_save_and_mark)


def test_an_output_that_setup_context_marks_has_no_tangent():
    x = torch.tensor([0.5, 1.5], dtype=torch.float64)

    _, (cube, square) = jvp(half_fixed, (x,), (torch.ones_like(x),))
    assert_close((cube, square), (3 * x**2, torch.zeros_like(x)))


@custom_op("jvp::weighted", non_differentiable=["weight"])
def weighted(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


weighted.register_jvp(lambda weight, tangent_x: tangent_x * weight)


@custom_op("jvp::product")
def product(x: Tensor, y: Tensor) -> Tensor:
    return x * y


product.register_jvp(lambda y, tangent_x: tangent_x * y)


def test_a_rule_need_not_name_a_tangent_that_no_input_has():
    x, y = torch.rand(2), torch.rand(2)

    assert_close(jvp(lambda x: product(x, y), (x,), (x,))[1], x * y)


def test_a_rule_need_not_name_the_tangent_of_a_constant_input():
    inputs = (torch.rand(2), torch.rand(2))

    assert_close(jvp(weighted, inputs, inputs)[1], inputs[0] * inputs[1])


@custom_op("jvp::largest", outputs=("out", "place"), hidden=("place",), reference=True)
def largest(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amax(), x.argmax()


largest.register_backward(lambda grad, x, place: torch.zeros_like(x).index_put((place,), grad))
largest.register_jvp(lambda tangent_x, place: tangent_x[place])


def test_a_hidden_integer_has_no_tangent_to_derive():
    x = torch.tensor([1.0, 3.0, 2.0])

    assert_close(jvp(largest, (x,), (x + 1,)), (torch.tensor(3.0), torch.tensor(4.0)))


def _sorting(name, rule):
    @custom_op(f"jvp::{name}", outputs=("y", "i"))
    def op(x: Tensor) -> tuple[Tensor, Tensor]:
        y, i = x.sort()
        return y, i

    op.register_jvp(rule)
    return op


SORTING = {
    "dict": _sorting("sort_dict", lambda tangent_x, i: {"y": tangent_x[i]}),
    "dict with None": _sorting("sort_none", lambda tangent_x, i: {"y": tangent_x[i], "i": None}),
    "one tangent": _sorting("sort_one", lambda tangent_x, i: tangent_x[i]),
    "tuple": _sorting("sort_tuple", lambda tangent_x, i: (tangent_x[i],)),
    "tuple with None": _sorting("sort_tuple_none", lambda tangent_x, i: (tangent_x[i], None)),
}


@pytest.mark.parametrize("op", SORTING.values(), ids=SORTING)
def test_a_rule_need_not_answer_for_an_integer_output(op):
    x, v = torch.tensor([2.0, 1.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])

    assert_close(jvp(lambda x: op(x)[0], (x,), (v,))[1], torch.tensor([5.0, 4.0, 6.0]))


def test_a_rule_has_to_answer_for_a_float_beside_an_integer_output():
    op = _sorting("sort_missing", lambda tangent_x, i: {"i": None})

    with pytest.raises(GradientError, match="the tangent of 'y' is missing"):
        jvp(op, (torch.rand(3),), (torch.rand(3),))


def test_a_rule_that_answers_for_integers_only_has_nothing_to_answer():
    op = custom_op("jvp::argmax", lambda x: x.argmax(), schema="(Tensor x) -> Tensor")
    op.register_jvp(lambda tangent_x: None)
    x = torch.rand(3)

    assert_close(jvp(lambda x: x * op(x), (x,), (x,))[1], x * x.argmax())


def _without_influence(name, rule):
    op = custom_op(f"jvp::{name}", lambda x, p: x * 2, schema="(Tensor x, Tensor p) -> Tensor")
    op.register_backward(rule)
    return op


def test_an_input_without_influence_has_none_for_a_gradient():
    op = _without_influence("none", lambda grad: {"x": 2 * grad, "p": None})
    x, p = torch.rand(3), torch.rand(3)

    assert_close(jvp(op, (x, p), (x, p))[1], 2 * x)


@pytest.mark.parametrize("x", [0.0, 1.0], ids=["zero here", "not zero"])
def test_a_gradient_that_was_computed_outside_autograd_raises(x):
    op = custom_op("jvp::detached", lambda x, p: x * p, schema="(Tensor x, Tensor p) -> Tensor", replace=True)
    op.register_backward(lambda grad, x, p: {"x": grad * p, "p": (grad * x).detach()})
    one = torch.ones(2)

    with pytest.raises(GradientError, match="return None for 'p'"):
        jvp(op, (x * one, one), (one, one))


# ------------------------------------------------------------------------------------ tensors that have no storage


def sparse_product(a: Tensor, b: Tensor) -> Tensor:
    return a.to_dense() @ b


sparse_derived = custom_op("jvp::sparse_derived", sparse_product, reference=True)
sparse_with_backward = custom_op("jvp::sparse_with_backward", sparse_product)
sparse_with_backward.register_backward(lambda grad, a: {"a": None, "b": a.to_dense().T @ grad})
sparse_with_jvp = custom_op("jvp::sparse_with_jvp", sparse_product)
sparse_with_jvp.register_jvp(lambda tangent_b, a: a.to_dense() @ tangent_b)
sparse_drop_in = custom_op("jvp::sparse_drop_in", sparse_product)
sparse_drop_in.register_autograd(
    lambda ctx, grad: (None, ctx.saved_tensors[0].to_dense().T @ grad),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@each("op", [sparse_derived, sparse_with_backward, sparse_with_jvp, sparse_drop_in])
def test_a_sparse_input_beside_a_tangent_has_none(op):
    """PyTorch has no tangents of sparse tensors, and raises when it is asked for one."""
    a, b, tangent = torch.eye(3)[:2], torch.ones(3, 2), torch.arange(6.0).reshape(3, 2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(b, tangent)
        found = [forward_ad.unpack_dual(op(x, dual)).tangent for x in (a.to_sparse(), a.to_sparse_csr())]

    assert_close(found, [a @ tangent] * 2)
    assert_close(jvp(lambda b: op(a.to_sparse(), b), (b,), (tangent,))[1], a @ tangent)


unknown = custom_op(
    "jvp::square_unknown", lambda x: (x**3, x**2), schema="(Tensor x) -> (Tensor out, Tensor square)", hidden="square"
)
unknown.register_backward(lambda grad, square: 3 * grad * square)
unknown.register_jvp(lambda tangent_x, x: 3 * tangent_x * x**2)


def of_unknown(x):
    return grad(lambda x: unknown(x).sum())(x)


def derivative_in_forward_ad(x):
    with forward_ad.dual_level():
        return of_unknown(forward_ad.make_dual(x, torch.ones_like(x)))


@each("derivative", [jacfwd(of_unknown), derivative_in_forward_ad])
def test_a_gradient_that_needs_an_unknown_tangent_is_refused(derivative):
    with pytest.raises(GradientUnavailable, match="the tangent of the hidden output 'square' is not known"):
        derivative(torch.ones(2))


def test_an_unknown_tangent_of_another_call_is_none_of_this_one():
    x, constant = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 4.0])

    found = jvp(lambda x: unknown(x) * of_unknown(constant), (x,), (torch.ones(2),))

    assert_close((x**3 * 3 * constant**2, 9 * x**2 * constant**2), found)
