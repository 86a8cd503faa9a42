"""The check `forward_mode` fails tangents that are zero or wrong, and skips an op that refuses."""

import torch
from tables import each
from torch.autograd import Function
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample


def result_of(op, shape=(4,)):
    return verdict("forward_mode", lambda make: [Sample(make(*shape))])(op)


class Squared(Function):
    """y = x**2 with both modes."""

    @staticmethod
    def forward(x):
        return x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx, tangent):
        return 2 * tangent * ctx.saved_tensors[0]


class WrongTangent(Squared):
    @staticmethod
    def jvp(ctx, tangent):
        return tangent * ctx.saved_tensors[0]


class NoTangent(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


@torch.library.custom_op("faults_forward_mode::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


doubled.register_autograd(lambda ctx, grad: 2 * grad)


@custom_op("faults_forward_mode::scaled", reference=True)
def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y


scaled.register_jvp(lambda y, tangent_x: tangent_x * y)
scaled.register_samples(lambda make: [Sample(make(4), make(4))])


def test_right_tangent_passes():
    assert "passed" == result_of(Squared).status


def test_wrong_tangent_fails():
    result = result_of(WrongTangent)

    assert "failed" == result.status
    assert "the tangent of output 0 along 'x' is wrong" in result.message


def test_tangent_that_torch_library_drops_fails_as_silently_zero():
    result = result_of(doubled)

    assert ("failed", "the tangent of output 0 along 'x' is silently zero") == (result.status, result.message)


def test_rule_that_does_not_take_a_tangent_fails():
    (result,) = scaled.check(checks=["forward_mode"], raise_on_failure=False).results

    assert "failed" == result.status
    assert "'y' has a tangent, and the jvp does not take it" in result.message


def test_refusal_is_skipped_with_its_reason():
    result = result_of(NoTangent)

    assert "skipped" == result.status
    assert "must implement the jvp function" in result.message


class DoublesExpanded(Squared):
    @staticmethod
    def jvp(ctx, tangent):
        return 2 * tangent * ctx.saved_tensors[0] * (2 if 0 in tangent.stride() else 1)


class DoublesFilled(Squared):
    @staticmethod
    def jvp(ctx, tangent):
        return 2 * tangent * ctx.saved_tensors[0] * (2 if not any(tangent.stride()) else 1)


class IgnoresStrides(Squared):
    @staticmethod
    def jvp(ctx, tangent):
        plain = tangent.as_strided(tangent.shape, torch.empty(tangent.shape).stride())
        return 2 * plain * ctx.saved_tensors[0]


class OnlyByTransform(Squared):
    @staticmethod
    def jvp(ctx, tangent):
        is_inside = torch.func.debug_unwrap(tangent) is not tangent
        is_transposed = not tangent.is_contiguous()
        return 2 * tangent * ctx.saved_tensors[0] * (2 if is_inside and is_transposed else 1)


@custom_op("faults_forward_mode::doubles_expanded", reference=True)
def doubles_expanded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y


@doubles_expanded.register_jvp
def _(x, y, tangent_x, tangent_y):
    total = torch.zeros_like(x) if tangent_y is None else x * tangent_y
    return total if tangent_x is None else total + y * tangent_x * (2 if 0 in tangent_x.stride() else 1)


@each(
    ("op", "text"),
    [
        (DoublesExpanded, "wrong for a tangent expanded along dimension 0: tangent of output 0["),
        (DoublesFilled, "wrong for an expanded tangent: tangent of output 0["),
        (IgnoresStrides, "wrong for a transposed tangent: tangent of output 0["),
        (IgnoresStrides, "wrong for a sliced tangent: tangent of output 0["),
        (OnlyByTransform, "wrong for a transposed tangent, by torch.func.jvp: tangent of output 0["),
    ],
)
def test_a_rule_that_misreads_the_layout_of_a_tangent_fails(op, text):
    result = result_of(op, (4, 3))

    assert "failed" == result.status
    assert text in result.message
    assert "the jvp misreads the memory of a tangent" == result.cause


def test_a_rule_of_two_inputs_that_doubles_expanded_tangents_fails():
    samples = [Sample(torch.rand(4, 3), torch.rand(4, 3))]
    result = verdict("forward_mode", samples)(doubles_expanded)

    assert "failed" == result.status
    assert "wrong for a tangent expanded along dimension 0: " in result.message


def logdet(x):
    return torch.logdet(x @ x.mT + torch.eye(3, dtype=x.dtype))


def sort(x):
    return x.sort().values


def inverse(x):
    """Refuses the matrices that are expanded rows."""
    return torch.linalg.inv(x)


def test_a_rule_that_raises_for_a_layout_fails():
    assert "forward mode raises RuntimeError" in result_of(IgnoresStrides, (4, 3)).message
    assert (
        "for a tangent expanded along dimension 0, and not for a contiguous copy"
        in result_of(IgnoresStrides, (4, 3)).message
    )


@each("op", [Squared, logdet, inverse, sort, torch.nn.functional.dropout])
def test_any_layout_of_a_tangent_passes(op):
    result = result_of(op, (3, 3))

    assert ("passed", "") == (result.status, result.message)


def test_an_op_without_an_autograd_kernel_fails_as_such():
    with torch.library._scoped_library("faults", "FRAGMENT") as library:
        library.define("recorded_only(Tensor x) -> Tensor")
        library.impl("recorded_only", lambda x: 2 * x, "CPU")
        result = verdict("forward_mode", lambda make: [Sample(make(3))])(torch.ops.faults.recorded_only.default)

    assert "failed" == result.status
    assert "by torch.func.jvp: tangent of output 0[0] = 0" in result.message
    assert "no rule is registered at an Autograd key" in result.cause
