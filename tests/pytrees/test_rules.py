"""Rules name containers as wholes: what is saved, needed and returned has the shape of the argument or result."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from tables import each
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from custom_autograd import GradientError, KernelError, RegistrationError, Sample, custom_op
from custom_autograd.verification.check import check


class Affine(NamedTuple):
    weight: Tensor
    bias: Tensor
    times: int


@dataclass
class Two:
    total: Tensor
    scaled: Tensor


def declared(name, *, with_reference=False):
    """A new op with a record, a dict and a record as result."""

    def function(x: Tensor, p: Affine, gains: dict[str, Tensor], shift: float = 0.5) -> Two:
        y = x * p.weight * p.times + p.bias + shift
        return Two(y, y * gains["a"] * gains["b"])

    return custom_op(f"structured_rules::{name}", function, reference=with_reference, replace=True)


def expected_gradients(grad_total, grad_scaled, x, p, gains, shift):
    a, b = gains["a"], gains["b"]
    y = x * p.weight * p.times + p.bias + shift
    grad = grad_total + grad_scaled * a * b
    return {
        "x": grad * p.weight * p.times,
        "p": Affine(grad * x * p.times, grad, None),
        "gains": {"a": grad_scaled * y * b, "b": grad_scaled * y * a},
    }


def tensors():
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(3, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(5)]


def called(op):
    def call(x, weight, bias, a, b):
        result = op(x, Affine(weight, bias, 2), {"a": a, "b": b})
        return result.total, result.scaled

    return call


def sampled(make):
    yield Sample(make(3), Affine(make(3), make(3), 2), {"a": make(3), "b": make(3)})


def test_a_dict_with_records_and_dicts_in_it():
    op = declared("whole")
    op.register_backward(expected_gradients)

    assert gradcheck(called(op), tensors())
    assert gradgradcheck(called(op), tensors())


def test_a_tuple_in_the_order_of_the_inputs():
    op = declared("tuple")

    @op.register_backward
    def _(grad_total, grad_scaled, x, p, gains, shift):
        found = expected_gradients(grad_total, grad_scaled, x, p, gains, shift)
        return found["x"], found["p"], found["gains"]

    assert gradcheck(called(op), tensors())


@custom_op("structured_rules::sum_of_dict")
def sum_of_dict(p: dict[str, Tensor]) -> Tensor:
    return p["a"] + p["b"]


@custom_op("structured_rules::sum_of_list")
def sum_of_list(p: list[Tensor] | None) -> Tensor:
    return torch.stack(p or []).sum(0)


@custom_op("structured_rules::two_of_one")
def two_of_one(x: Tensor) -> Two:
    return Two(x * 1, x * 1)


ALONE = {
    "dict": (sum_of_dict, lambda grad: ({"a": grad, "b": grad},), lambda x: sum_of_dict({"a": x, "b": x})),
    "later": (sum_of_dict, lambda grad: (lambda: {"a": grad, "b": grad},), lambda x: sum_of_dict({"a": x, "b": x})),
    "list": (sum_of_list, lambda grad: ([grad, grad],), lambda x: sum_of_list([x, x])),
    "list of one": (sum_of_list, lambda grad: ([2 * grad],), lambda x: sum_of_list([x])),
    "tensor": (two_of_one, lambda grad_total, grad_scaled: (2 * grad_total,), lambda x: two_of_one(x).total),
}


@each("op, rule, call", ALONE.values(), ALONE)
def test_the_only_gradient_may_be_in_a_tuple(op, rule, call):
    op.register_backward(rule, replace=True)
    x = torch.ones(2, requires_grad=True)

    assert [2.0, 2.0] == torch.autograd.grad(call(x).sum(), x)[0].tolist()


def test_a_record_may_be_given_as_a_dict_and_places_as_callables():
    op = declared("callables")
    runs = []

    @op.register_backward
    def _(grad_total, grad_scaled, x, p, gains, shift):
        found = expected_gradients(grad_total, grad_scaled, x, p, gains, shift)

        def weight():
            runs.append("weight")
            return found["p"].weight

        def both():
            runs.append("gains")
            return found["gains"]

        return {"x": found["x"], "p": {"weight": weight, "bias": found["p"].bias}, "gains": both}

    x, weight, bias, a, b = tensors()
    result = called(op)(x, weight.detach(), bias, a.detach(), b.detach())
    torch.autograd.grad(result, [x, bias], [torch.ones(3).double()] * 2)
    assert [] == runs
    assert gradcheck(called(op), tensors())
    assert {"gains", "weight"} == set(runs)


@pytest.mark.parametrize("are_fields_callable", [False, True])
def test_a_callable_for_a_whole_record_runs_once(are_fields_callable):
    op = declared("once")
    runs = []

    @op.register_backward
    def _(grad_total, grad_scaled, x, p, gains, shift):
        found = expected_gradients(grad_total, grad_scaled, x, p, gains, shift)

        def record():
            runs.append("p")
            if not are_fields_callable:
                return found["p"]
            return {"weight": lambda: found["p"].weight, "bias": lambda: found["p"].bias}

        return {**found, "p": record}

    assert gradcheck(called(op), tensors())
    runs.clear()
    y = called(op)(*tensors())
    torch.autograd.backward(y, [torch.ones(3).double()] * 2)

    assert ["p"] == runs


def test_flat_names_are_names_too():
    op = declared("flat")

    @op.register_backward
    def _(grad_total, grad_scaled, x, p_weight, p_bias, p_times, gains, shift):
        found = expected_gradients(grad_total, grad_scaled, x, Affine(p_weight, p_bias, p_times), gains, shift)
        return {"x": found["x"], "p_weight": found["p"].weight, "p_bias": found["p"].bias, "gains": found["gains"]}

    assert gradcheck(called(op), tensors())


def test_needs_and_meta_have_the_shape_of_the_argument():
    op, seen = declared("needs"), []

    @op.register_backward
    def _(grad_total, grad_scaled, x, p, gains, shift, needs, meta):
        seen.append((needs.p, needs.gains, needs.x, meta.p.weight.shape, meta.gains["a"].dtype, meta.p.times))
        return expected_gradients(grad_total, grad_scaled, x, p, gains, shift)

    x, weight, bias, a, b = tensors()
    result = op(x.detach(), Affine(weight, bias.detach(), 2), {"a": a, "b": b.detach()})
    torch.autograd.grad(result.scaled.sum(), [weight, a])

    assert [(Affine(True, False, False), {"a": True, "b": False}, False, (3,), torch.float64, None)] == seen


def test_gradients_of_single_inputs():
    op = declared("single")

    @op.register_grad("p")
    def _(grad_total, grad_scaled, x, p, gains, shift):
        return expected_gradients(grad_total, grad_scaled, x, p, gains, shift)["p"]

    @op.register_grad("x", "gains")
    def _(grad_total, grad_scaled, x, p, gains, shift):
        found = expected_gradients(grad_total, grad_scaled, x, p, gains, shift)
        return found["x"], found["gains"]

    assert gradcheck(called(op), tensors())


def test_what_a_rule_does_not_answer_comes_from_the_reference():
    op = declared("partly", with_reference=True)

    @op.register_grad("gains")
    def _(grad_scaled, x, p, gains, shift):
        return expected_gradients(0, grad_scaled, x, p, gains, shift)["gains"]

    assert gradcheck(called(op), tensors())


def test_jvp_has_tangents_of_the_shape_of_the_argument():
    op = declared("jvp")

    @op.register_jvp
    def _(tangent_x, tangent_p, tangent_gains, x, p, gains, shift):
        def zero(tangent):
            return 0 if tangent is None else tangent

        y = x * p.weight * p.times + p.bias + shift
        dy = (zero(tangent_x) * p.weight + x * zero(tangent_p.weight)) * p.times + zero(tangent_p.bias)
        da, db = zero(tangent_gains["a"]), zero(tangent_gains["b"])
        scaled = dy * gains["a"] * gains["b"] + y * (da * gains["b"] + gains["a"] * db)
        return Two(dy + torch.zeros_like(y), scaled + torch.zeros_like(y))

    values = tuple(x.detach() for x in tensors())

    def plain(x, weight, bias, a, b):
        y = x * weight * 2 + bias + 0.5
        return y, y * a * b

    torch.testing.assert_close(torch.func.jvp(called(op), values, values), torch.func.jvp(plain, values, values))

    def partly(function):
        return torch.func.jvp(lambda a: function(*values[:3], a, values[4]), values[3:4], values[3:4])

    torch.testing.assert_close(partly(called(op)), partly(plain))


def test_vmap_rule_has_in_dims_of_the_shape_of_the_argument():
    op, seen = declared("vmap"), []

    @op.register_vmap
    def _(info, in_dims, x, p, gains, shift):
        seen.append(in_dims)
        y = x * p.weight * p.times + p.bias + shift
        return Two(y, y * gains["a"] * gains["b"]), Two(None, 0)

    x, weight, bias, a, b = (x.detach() for x in tensors())
    batch = torch.stack([a, a * 2])
    found = torch.vmap(lambda one: called(op)(x.expand(3), weight, bias, one, b))(batch)

    y = x * weight * 2 + bias + 0.5
    torch.testing.assert_close(found[1], y * batch * b)
    assert [(None, Affine(None, None, None), {"a": 0, "b": None}, None)] == seen


def test_drop_in_rules_see_containers():
    op, seen = declared("drop_in"), []

    def setup_context(ctx, inputs, output):
        x, p, gains, shift = inputs
        assert isinstance(output, Two)
        ctx.save_for_backward(x, p.weight, p.bias, gains["a"], gains["b"])
        ctx.times, ctx.shift = p.times, shift

    def backward(ctx, grad):
        x, weight, bias, a, b = ctx.saved_tensors
        seen.append(ctx.needs_input_grad)
        p = Affine(weight, bias, ctx.times)
        found = expected_gradients(grad.total, grad.scaled, x, p, {"a": a, "b": b}, ctx.shift)
        return found["x"], found["p"], found["gains"], None

    op.register_autograd(lambda ctx, total, scaled: backward(ctx, Two(total, scaled)), setup_context=setup_context)

    assert gradcheck(called(op), tensors())
    assert (True, Affine(True, True, False), {"a": True, "b": True}, False) == seen[0]


def test_kernels_fakes_and_samples_have_containers():
    op = declared("kernels", with_reference=True)

    @op.register_kernel("cpu")
    def _(x, p, gains, shift):
        y = x * p.weight * p.times + p.bias + shift
        return Two(y, y * gains["a"] * gains["b"])

    @op.register_fake
    def _(x, p, gains, shift):
        return Two(torch.empty_like(x), torch.empty_like(x))

    op.register_backward(expected_gradients)
    op.register_samples(sampled)

    report = check(op, checks="quick")
    assert report.ok, str(report)


@custom_op("structured_rules::advance", mutates_args=("s.total",))
def advance(s: Two, x: Tensor) -> Tensor:
    s.total.add_(x)
    return s.total * s.scaled


@advance.register_fake
def _(s, x):
    return torch.empty_like(x)


@advance.register_backward
def _(grad_s, grad_output, s):
    grad = grad_s.total + grad_output * s.scaled
    return {"s": Two(grad, grad_output * s.total), "x": grad}


@advance.register_samples
def _(make):
    yield Sample(Two(make(3), make(3)), make(3))


@pytest.mark.slow
def test_one_place_of_a_record_is_written_to():
    report = check(advance)

    assert report.ok, str(report)


def test_written_place_is_written_and_no_other():
    state = Two(torch.ones(3), torch.full((3,), 2.0))

    output = advance(state, torch.ones(3))

    assert [2.0] * 3 == state.total.tolist()
    assert [4.0] * 3 == output.tolist()
    assert state.total._version > 0
    assert 0 == state.scaled._version


def returning(name, result):
    op = declared(name)

    @op.register_backward
    def _(grad_total, x, p):
        return result(grad_total)

    return op


WRONG = {
    "a tensor for a record": (
        lambda g: {"x": g, "p": g, "gains": None},
        r"p\n  expected   Affine\(weight, bias, times\)\n  found      a tensor",
    ),
    "a dict with another key": (
        lambda g: {"x": g, "p": None, "gains": {"c": g}},
        r"gains\n  expected   a dict with the keys 'a', 'b'\n  found      a dict with the keys 'c'",
    ),
    "a dict without a key": (
        lambda g: {"x": g, "p": None, "gains": {"a": None}},
        r"gains\n  expected   a dict with the keys 'a', 'b'\n  found      a dict with the keys 'a'",
    ),
    "an unknown name": (
        lambda g: {"x": g, "p": None, "gians": {"a": None}},
        "found      a dict with the keys 'x', 'p', 'gians'\n  do         did you mean 'gains'",
    ),
    "too few": (lambda g: (g, None), "expected   a dict or a tuple for 'x', 'p', 'gains'\n  found      a tuple of 2"),
    "a place left out": (lambda g: {"x": g, "p": {"weight": g}, "gains": None}, "the gradient of 'p_bias' is missing"),
    "another shape": (lambda g: {"x": g, "p": Affine(g[:2], g, None), "gains": None}, "'p_weight' has the wrong shape"),
}


@each("name", WRONG)
def test_wrong_gradients_are_refused(name):
    result, message = WRONG[name]
    op = returning(f"wrong_{name.replace(' ', '_')}", result)
    y = called(op)(*tensors())[0]

    with pytest.raises(GradientError, match=message):
        y.sum().backward()


def test_kernel_that_returns_another_container_is_refused():
    op = declared("other")
    op.register_kernel("cpu")(lambda x, p, gains, shift: (x.clone(), x.clone()))

    with pytest.raises(KernelError, match=r"the result\n  expected   Two\(total, scaled\)\n  found      a tuple of 2"):
        called(op)(*tensors())


def test_rule_that_names_nothing_is_refused():
    op = declared("nameless")

    with pytest.raises(RegistrationError, match="has a parameter 'wieght' that names nothing"):
        op.register_backward(lambda grad_total, wieght: None)


def test_kernel_with_other_parameters_is_refused():
    op = declared("parameters")

    with pytest.raises(RegistrationError, match="does not fit the schema"):
        op.register_kernel("cpu")(lambda x, p: None)
