"""Gradients that differ from the derivative on purpose pass, with their reason; wrong ones still fail."""

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import CheckError, Sample, check, custom_op

COMPARISONS = ["derivatives", "sizes", "nesting", "vmap"]


def samples(make):
    yield Sample(make(3))


@custom_op("surrogate::rounded")
def rounded(x: Tensor) -> Tensor:
    return x.round()


@rounded.register_reference(surrogate="straight through")
def _(x):
    return x + (x.round() - x).detach()


def copied(name, factor=-1.0, **options):
    """An op that returns a copy of its input, whose gradient is another multiple of the incoming one."""
    op = custom_op(f"surrogate::{name}", lambda x: x.clone(), schema="(Tensor x) -> Tensor", reference=True)
    op.register_backward(lambda grad: factor * grad, **options)
    return op


clipped = custom_op("surrogate::clipped", lambda x: x.clone(), schema="(Tensor x) -> Tensor", reference=True)
clipped.register_backward(lambda grad: grad.clamp(-0.5, 0.5), surrogate="clipped")

reversed_by_ctx = custom_op("surrogate::by_ctx", lambda x: x.clone(), schema="(Tensor x) -> Tensor", reference=True)
reversed_by_ctx.register_autograd(lambda ctx, grad: -grad, surrogate="reversed")


@custom_op("surrogate::spike", reference=True)
def spike(x: Tensor, weight: Tensor) -> Tensor:
    return (x > 0).to(x.dtype) * weight


@spike.register_grad("x", surrogate="that of a sigmoid")
def _(grad, x, weight):
    return grad * weight * torch.sigmoid(x) * torch.sigmoid(-x)


def found(op, checks, samples=samples):
    return {result.check: result for result in check(op, samples, checks=checks).results}


HONEST = {
    "straight through": (rounded, samples),
    "reversed": (copied("reversed", surrogate="reversed"), samples),
    "scaled": (copied("scaled", 0.5, surrogate="scaled"), samples),
    "clipped": (clipped, samples),
    "drop-in": (reversed_by_ctx, samples),
    "one input": (spike, lambda make: [Sample(make(3), make(3))]),
}


@each(("op", "samples"), HONEST.values())
def test_a_gradient_that_is_not_the_derivative_on_purpose_passes(op, samples):
    report = check(op, samples, checks=COMPARISONS)

    assert report.ok, str(report)


def test_the_reason_is_reported():
    results = found(rounded, ["directional", "gradcheck"])

    reason = "the gradient of 'x' is not the derivative: straight through"
    assert ("skipped", reason) == (results["directional"].status, results["directional"].message)
    assert ("passed", f"not checked: {reason}") == (results["gradcheck"].status, results["gradcheck"].message)


def test_the_same_gradient_fails_undeclared():
    results = found(copied("undeclared"), ["directional", "gradcheck", "reference_gradients"])

    assert ["failed"] * 3 == [result.status for result in results.values()]


def rule_of_rounded(**rules):
    op = custom_op(f"surrogate::wrong_{'_'.join(rules)}", lambda x: x.round(), schema="(Tensor x) -> Tensor")
    op.register_reference(lambda x: x + (x.round() - x).detach(), surrogate="straight through")
    for name, rule in rules.items():
        getattr(op, f"register_{name}")(rule)
    return op


def test_a_backward_that_is_not_the_autograd_of_its_reference_fails():
    result = found(rule_of_rounded(backward=lambda grad: 2 * grad), ["reference_gradients"])["reference_gradients"]

    assert ("failed", "a factor 2") == (result.status, result.cause)


def test_a_jvp_that_is_not_the_autograd_of_its_reference_fails():
    result = found(rule_of_rounded(jvp=lambda tangent_x: 2 * tangent_x), ["forward_mode"])["forward_mode"]

    assert "the tangent of output 0 along 'x' is wrong" in result.message


def test_a_backward_that_is_not_linear_fails_unless_it_is_a_surrogate_itself():
    result = found(rule_of_rounded(backward=lambda grad: grad.clamp(-0.1, 0.1)), ["linearity"])["linearity"]

    assert "failed" == result.status


def test_the_gradient_of_another_input_is_still_verified():
    op = custom_op("surrogate::other", spike.__wrapped__, reference=True)
    op.register_grad("x", surrogate="that of a sigmoid")(lambda grad, x: grad * x)
    op.register_grad("weight")(lambda grad, x: 3 * grad * (x > 0))
    results = found(op, ["directional", "reference_gradients"], lambda make: [Sample(make(3), make(3))])

    assert {"failed"} == {result.status for result in results.values()}
    assert "the gradient of 'weight'" in results["directional"].message


def test_a_surrogate_in_a_container_is_left_out():
    op = custom_op("surrogate::in_dict", in_dict, reference=True)
    op.register_grad("p", surrogate="reversed")(lambda grad, p: {"a": -grad})
    report = check(op, lambda make: [Sample({"a": make(3)}, make(3))], checks=["directional", "reference_gradients"])

    assert report.ok, str(report)


def in_dict(p: dict[str, Tensor], x: Tensor) -> Tensor:
    return p["a"] + x


def test_a_gradient_of_a_batch_comes_from_the_surrogate_rule():
    """The op has a reference, whose autograd would return 1."""
    op = copied("batched", surrogate="reversed")

    batched = torch.func.grad(lambda x: torch.vmap(op)(x).sum())(torch.ones(2, 3))

    assert torch.equal(-torch.ones(2, 3), batched)
    assert "derived: a loop over the batch" == op.capabilities()["vmap"]


def doubled_tangent(name, **options):
    """An op that returns a copy of its input, whose tangent is twice that of the input."""
    op = custom_op(f"surrogate::{name}", lambda x: x.clone(), schema="(Tensor x) -> Tensor", reference=True)
    op.register_backward(lambda grad: grad)
    op.register_jvp(lambda tangent_x: 2 * tangent_x, **options)
    return op


def test_a_tangent_that_is_not_the_derivative_on_purpose_passes():
    report = check(doubled_tangent("tangent", surrogate="amplified"), samples, checks=COMPARISONS)
    messages = {result.check: result.message for result in report.results}

    assert report.ok, str(report)
    for name in ("forward_mode", "adjoint", "forward_over_reverse"):
        assert "the tangent is not the derivative: amplified" == messages[name]


def test_the_same_tangent_fails_undeclared():
    assert "failed" == found(doubled_tangent("tangent_undeclared"), ["forward_mode"])["forward_mode"].status


def test_a_tangent_of_a_batch_comes_from_the_surrogate_rule():
    op = doubled_tangent("batched_tangent", surrogate="amplified")
    x = torch.ones(2, 3)

    _, tangent = torch.func.jvp(torch.vmap(op), (x,), (x,))

    assert torch.equal(2 * x, tangent)


class Reversal(torch.autograd.Function):
    """A Function of another package, which cannot say that it means it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs):
        return inputs[0].clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return -grad

    @staticmethod
    def jvp(ctx, tangent):
        return -tangent


def test_a_function_of_others_is_declared_in_the_check():
    report = check(Reversal, samples, checks=COMPARISONS, surrogate="reversed")
    undeclared = check(Reversal, samples, checks=["directional"])

    assert report.ok, str(report)
    assert "reversed" in {result.check: result.message for result in report.results}["directional"]
    assert not undeclared.ok


@each("reason", ["", True])
def test_a_check_wants_the_reason(reason):
    with pytest.raises(CheckError, match="surrogate= takes the reason"):
        check(Reversal, samples, surrogate=reason)


class Drawn(torch.autograd.Function):
    """A step whose gradient is a random share of the incoming one."""

    @staticmethod
    def forward(ctx, x):
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.rand_like(grad)


def test_a_gradient_that_is_drawn_on_purpose_passes_and_values_are_verified():
    checks = ["determinism", "process_state", "layouts", "cotangents", "reuse", "low_precision"]
    report = check(Drawn, samples, checks=checks, surrogate="drawn")
    results = {result.check: (result.status, result.message) for result in report.results}

    assert report.ok, str(report)
    assert "passed" == results["layouts"][0]
    assert ("skipped", "its gradient draws random numbers on purpose") == results["reuse"]


def test_the_same_gradient_undeclared_is_not_deterministic():
    assert {"failed"} == {result.status for result in found(Drawn, ["determinism", "process_state"]).values()}


class FirstTime(torch.autograd.Function):
    """When the first element above 0 comes, a whole number in float64."""

    @staticmethod
    def forward(ctx, x):
        ctx.size = x.shape
        return (x > 0).to(x.dtype).argmax(0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        return -grad.expand(ctx.size)


def test_a_value_that_jumps_is_not_taken_for_one_of_low_precision():
    jumping = [Sample(torch.tensor([[-1.0, 1e-9], [1e-9, 1.0]], dtype=torch.float64, requires_grad=True))]

    assert check(FirstTime, jumping, checks=["gradcheck"], surrogate="each time earlier").ok
