"""Ops that are right, each of which a check once called wrong: the check passes, or is skipped for a reason."""

import itertools

import torch
import torch.nn.functional as F
from expecttest import assert_expected_inline
from tables import each
from torch import Tensor
from torch.autograd import Function

from custom_autograd import Sample, check, custom_op


def results_of(op, samples, *checks):
    return check(op, samples, checks=list(checks), isolated=False).results


def status_of(op, samples, name):
    (result,) = results_of(op, samples, name)
    return result.status, result.message


def randn(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()


# ------------------------------------------------------------------------------------------ outputs of a lower dtype


def norm_in_bfloat16(x, w):
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w).to(torch.bfloat16)


def to_half(x):
    return x.half()


def to_bfloat16(x):
    return x.to(torch.bfloat16)


def halves_and_doubles(x):
    return x.half(), x * 2


class AbsoluteInHalf(Function):
    @staticmethod
    def forward(ctx, x):
        return x.half()

    @staticmethod
    def backward(ctx, grad):
        return grad.abs().double()


@each("op", [to_half, to_bfloat16, halves_and_doubles])
def test_a_cast_is_linear(op):
    assert ("passed", "") == status_of(op, [Sample(randn(4, 8))], "linearity")


def test_a_norm_in_mixed_precision_is_linear():
    assert ("passed", "") == status_of(norm_in_bfloat16, [Sample(randn(4, 8), randn(8))], "linearity")


def test_a_backward_that_is_not_linear_fails_where_the_output_is_half_too():
    status, message = status_of(AbsoluteInHalf.apply, [Sample(randn(4, 8))], "linearity")

    assert "failed" == status
    assert "vjp(0.5 u - 2 v)" in message


# --------------------------------------------------------------------------------------- slopes within a small step


def rms_norm(x):
    return F.rms_norm(x, (x.shape[-1],))


def rms_norm_of_eps(x):
    return F.rms_norm(x, (x.shape[-1],), eps=1e-12)


def normalize(x):
    return F.normalize(x)


class RmsNormOffAtZero(Function):
    """The gradient at zero is half of what it is."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return rms_norm_of_eps(x)

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            (found,) = torch.autograd.grad(rms_norm_of_eps(x), x, grad)
        return torch.where((x == 0).all(-1, keepdim=True), found / 2, found)


@each("op", [rms_norm, rms_norm_of_eps, normalize])
@each("dtype", [torch.float32, torch.float64])
def test_a_norm_of_zeros_has_a_steep_slope_and_a_right_gradient(op, dtype):
    assert "passed" == status_of(op, [Sample(randn(4, 8, dtype=dtype))], "directional")[0]


def test_a_norm_at_zeros_that_a_sample_has_is_not_wrong_for_gradcheck():
    x = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)

    assert status_of(rms_norm, [Sample(x)], "gradcheck")[0] in ("passed", "skipped")


def test_a_steep_slope_that_is_wrong_fails():
    status, message = status_of(RmsNormOffAtZero, [Sample(randn(4, 8))], "directional")

    assert "failed" == status
    assert "zero: the gradient of 'x'" in message
    assert "(ratio 0.5)" in message


# ------------------------------------------------------------------------------------------ values that are refused


def density(x):
    if bool((x < 0).any()):
        raise ValueError("x must be >= 0")
    return x.square() * 1e3


def one_sided(x):
    if bool((x > 0).any()):
        raise ValueError("x must be <= 0")
    return x * 2


@each("name", ["gradcheck", "non_differentiable", "directional"])
def test_small_values_next_to_those_that_are_refused_are_checked(name):
    x = torch.full((4,), 5e-4, dtype=torch.float64, requires_grad=True)

    assert "passed" == status_of(density, [Sample(x)], name)[0]


@each("name", ["gradcheck", "non_differentiable"])
def test_a_value_on_the_border_of_those_that_are_refused_is_skipped(name):
    x = torch.zeros(4, dtype=torch.float64, requires_grad=True)

    assert ("skipped", "the op refuses values nearby (ValueError: x must be <= 0)") == status_of(
        one_sided, [Sample(x)], name
    )


# ------------------------------------------------------------------------------------------------- random operators


class IgnoresStrides(Function):
    @staticmethod
    def forward(ctx, x):
        return x.as_strided(x.shape, torch.empty(x.shape).stride()) * 2 + 0 * torch.rand(())

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def dropout(x):
    return F.dropout(x, 0.5)


def noise(x):
    return x + torch.rand_like(x)


@each("op", [dropout, noise])
def test_random_numbers_follow_the_order_of_memory(op):
    assert "passed" == status_of(op, [Sample(randn(30, 5))], "layouts")[0]


def test_a_random_op_that_ignores_strides_fails():
    status, message = status_of(IgnoresStrides.apply, [Sample(randn(30, 5))], "layouts")

    assert "failed" == status
    assert "with a step of 2 along dimension 0: output 0[" in message


# ------------------------------------------------------------------------------------------------ constant outputs


@custom_op("honest::ones", reference=True)
def ones(x: Tensor) -> Tensor:
    return torch.ones_like(x)


@custom_op("honest::double_and_ones", reference=True)
def double_and_ones(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, torch.ones_like(x)


@each("op", [ones, double_and_ones])
def test_a_constant_output_has_zero_derivatives(op):
    assert status_of(op, [Sample(randn(3, dtype=torch.float64))], "nesting")[0] in ("passed", "skipped")


# ------------------------------------------------------------------------------------------------------- size zero


@custom_op("honest::thirds", reference=True)
def thirds(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(part.clone() for part in torch.split(x, 2))


@custom_op("honest::shuffle", reference=True)
def shuffle(x: Tensor) -> Tensor:
    return F.channel_shuffle(x, 2).clone()


@custom_op("honest::strided", reference=True)
def strided(x: Tensor, step: int) -> Tensor:
    return x * (12 // step)


@custom_op("honest::steps", reference=True)
def steps(x: Tensor, step: int) -> Tensor:
    return x * step


@steps.register_kernel("cpu")
def _(x, step):
    return x * (12 // step) * step / (12 // step)


def test_a_tuple_that_is_shorter_at_size_zero_is_left_out():
    assert ("passed", "") == status_of(thirds, [Sample(randn(6))], "sizes")


def test_a_reference_without_a_gradient_at_size_zero_is_left_out():
    status, message = status_of(shuffle, [Sample(randn(2, 4, 3, 3))], "sizes")

    assert "passed" == status
    assert "" == message or "the gradient of the reference raises" in message


def test_an_integer_that_equals_a_size_stays():
    assert ("passed", "") == status_of(strided, [Sample(randn(3), 3)], "sizes")


def test_an_integer_that_follows_a_size_is_named():
    status, message = status_of(steps, [Sample(randn(3), 3)], "sizes")

    assert "failed" == status
    assert message.startswith("size 3 -> 0, with step=0: the op raises ")
    assert "ZeroDivisionError" in message


# ------------------------------------------------------------------------------------- what integer tensors point at


SEEN = []


@custom_op("honest::segments")
def segments(values: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    """Sums of values between offsets, as compressed rows; what is not a valid call is noted."""
    pairs = list(itertools.pairwise(offsets.tolist()))
    if offsets.tolist() != [0, 3, 5] or len(values) != 5:
        SEEN.append((offsets.tolist(), len(values)))
    return torch.stack([values[a:b].sum() for a, b in pairs])[:, None] * weight


@segments.register_fake
def _(values, offsets, weight):
    return weight.new_empty(offsets.shape[0] - 1, weight.shape[0])


@segments.register_backward
def _(grad, values, offsets, weight):
    lengths = offsets.diff()
    sums = torch.stack([part.sum() for part in values.split(lengths.tolist())])
    return {"values": (grad * weight).sum(1).repeat_interleave(lengths), "weight": (grad * sums[:, None]).sum(0)}


@segments.register_reference
def _(values, offsets, weight):
    parts = [values[a:b].sum() for a, b in itertools.pairwise(offsets.tolist())]
    return torch.stack(parts)[:, None] * weight


def test_offsets_are_never_resized_repeated_or_redrawn():
    SEEN.clear()
    sample = Sample(randn(5), torch.tensor([0, 3, 5]), randn(7))
    names = ("symbolic", "sizes", "layouts", "schema", "saved", "low_precision", "vmap", "reference", "determinism")
    report = check(segments, [sample], checks=list(names), isolated=False)

    assert [] == SEEN
    assert "passed" == next(row.status for row in report.results if row.check == "symbolic")


def test_an_index_is_not_made_a_mask():
    schema = "(Tensor table, Tensor index) -> Tensor"
    op = custom_op("honest::rows", lambda table, index: table[index], schema=schema, reference=True, replace=True)

    assert ("passed", "") == status_of(op, [Sample(randn(1, 3), torch.tensor([0]))], "fake")


# --------------------------------------------------------------------------------- a backward that writes to its input


class Hinge(Function):
    @staticmethod
    def forward(ctx, x, target):
        ctx.save_for_backward(x, target)
        return (1 - x * target).clamp(min=0).square().mean()

    @staticmethod
    def backward(ctx, grad):
        x, target = ctx.saved_tensors
        return grad.resize_as_(x).copy_(-2 * target * (1 - x * target).clamp(min=0) / x.numel()), None


class ScaledInPlace(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad.mul_(3)


def test_a_backward_that_resizes_its_incoming_gradient_is_named():
    rows = results_of(Hinge, [Sample(randn(5), torch.ones(5))], "determinism", "gradcheck", "linearity")
    found = {row.check: (row.status, row.message) for row in rows}

    assert "passed" == found["determinism"][0]
    assert_expected_inline(
        found["gradcheck"][1],
        """\
the backward resizes its incoming gradient, which belongs to the engine; gradcheck: backward not multiplied by \
grad_output""",
    )
    assert "vjp(0): gradient of 'x'[" in found["linearity"][1]


def test_a_wrong_backward_that_writes_to_its_incoming_gradient_is_named():
    status, message = status_of(ScaledInPlace, [Sample(randn(5))], "gradcheck")

    assert "failed" == status
    assert message.startswith("the backward writes to its incoming gradient, which belongs to the engine; ")
