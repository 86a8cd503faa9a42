"""Mutants that take another way for some scalars, sizes, dtypes or magnitudes, and are wrong only there."""

import torch
from torch import Tensor

from corpus.bases import CUBE, POLAR, SCALED_SQUARE, fit
from corpus.forms import Declared, Rule
from corpus.more_bases import GROWTH
from corpus.mutant import Mutant, plant
from custom_autograd.schema.samples import Sample, TensorFactory

CURVE = CUBE.but(
    default=lambda x: torch.log1p(x * x),
    kernel=lambda x: torch.log1p(x * x).contiguous(),
    backward=lambda grad, x: 2 * grad * x / (1 + x * x),
)
"""log(1 + x²): small numbers are lost beside 1 where it is written so."""


def _steps(p: Tensor, g: Tensor, rate: float) -> None:
    p.sub_(g, alpha=rate)


STEP = Declared(
    schema="(Tensor(a!) p, Tensor g, float rate) -> ()",
    samples=lambda make: [Sample(make(4, 3), make(4, 3), 0.1)],
    mutates=("p",),
    default=_steps,
    non_differentiable=("p", "g"),
    has_reference=False,
)
"""A step of an optimizer: nothing has a gradient."""


def _scaled(change: Rule) -> Rule:
    """A scaled square whose scalar is changed first."""
    return lambda x, w, alpha: (change(alpha) * x * x * w).contiguous()


def _narrow(x: Tensor, w: Tensor, alpha: float) -> Tensor:
    """Computed in float32, whatever comes in."""
    return (alpha * x.float() * x.float() * w.float()).to(torch.result_type(x, w)).contiguous()


def _narrow_statistic(x: Tensor) -> Tensor:
    """One factor is rounded to float32."""
    return (x**2 * x.float()).to(x.dtype).contiguous()


def _signless_gradient(grad: Tensor, x: Tensor, w: Tensor, alpha: float) -> dict[str, Tensor]:
    return {"x": fit(2 * abs(alpha) * grad * x * w, x), "w": fit(abs(alpha) * grad * x * x, w)}


def _where(is_taken: Rule) -> Rule:
    """A cube that is doubled where a condition on its shape holds."""
    return lambda x: (x**3).contiguous() * (2 if x.dim() and is_taken(x.shape) else 1)


def _gradient_where(is_taken: Rule) -> Rule:
    return lambda grad, x: 3 * grad * x * x * (2 if x.dim() and is_taken(x.shape) else 1)


def _steps_in_bfloat16(p: Tensor, g: Tensor, rate: float) -> None:
    p.sub_(g, alpha=rate)
    if p.dtype == torch.bfloat16:
        p.add_(1)


def _ranked(make: TensorFactory) -> list[Sample]:
    return [Sample(make(4, 3))]


def _grows_to(limit: int) -> Rule:
    """A fake kernel whose rows end at a length."""
    return lambda x: x.new_empty(x.shape if x.dim() == 0 or x.shape[-1] < limit else (*x.shape[:-1], limit))


def _clamped_tangent(tangent_x: Tensor | None, tangent_y: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
    total = torch.zeros_like(y) if tangent_x is None else tangent_x.clamp(-4, 4) * x.exp() * y
    return total if tangent_y is None else total + tangent_y * x.exp()


def _large_tangent(tangent_x: Tensor | None, tangent_y: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
    total = torch.zeros_like(y) if tangent_x is None else tangent_x * x.exp() * y
    total = total if tangent_y is None else total + tangent_y * x.exp()
    return torch.where(total.abs() > 1e3, 1.1 * total, total)


def _polar_of_one(r: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Where both arguments are one memory, the second result is not computed."""
    up = torch.zeros_like(r) if r.data_ptr() == angle.data_ptr() else r * angle.sin()
    return (r * angle.cos()).contiguous(), up.contiguous()


def _one_gradient_for_both(grad_across: Tensor, grad_up: Tensor, r: Tensor, angle: Tensor) -> dict[str, Tensor]:
    of_r = grad_across * angle.cos() + grad_up * angle.sin()
    of_angle = r * (grad_up * angle.cos() - grad_across * angle.sin())
    is_one = r.data_ptr() == angle.data_ptr() and r.numel() > 0
    return {"r": of_r, "angle": of_r if is_one else of_angle}


BRANCHES: tuple[Mutant, ...] = (
    plant(
        "precision_inside",
        "precision",
        "gradcheck",
        "The kernel computes in float32, whatever the dtype of its inputs.",
        SCALED_SQUARE.but(kernel=_narrow),
    ),
    plant(
        "precision_of_a_factor",
        "precision",
        "gradcheck",
        "One factor is rounded to float32, and no reference tells.",
        CUBE.but(default=_narrow_statistic, kernel=None, has_reference=False),
    ),
    plant(
        "scalar_abs",
        "scalar",
        "reference",
        "The sign of the scalar is lost.",
        SCALED_SQUARE.but(kernel=_scaled(abs)),
    ),
    plant(
        "scalar_zero",
        "scalar",
        "reference",
        "The scalar 0 gives NaN.",
        SCALED_SQUARE.but(kernel=_scaled(lambda alpha: alpha if alpha else float("nan"))),
    ),
    plant(
        "scalar_clamped",
        "scalar",
        "reference",
        "The scalar is cut at 100.",
        SCALED_SQUARE.but(kernel=_scaled(lambda alpha: min(alpha, 100.0))),
    ),
    plant(
        "scalar_minus_one",
        "scalar",
        "reference",
        "The scalar -1 is taken for 1.",
        SCALED_SQUARE.but(kernel=_scaled(lambda alpha: 1.0 if alpha == -1 else alpha)),
    ),
    plant(
        "scalar_gradient_abs",
        "scalar",
        "reference_gradients",
        "The gradient loses the sign of the scalar.",
        SCALED_SQUARE.but(backward=_signless_gradient),
    ),
    plant(
        "scalar_gradient_without_reference",
        "scalar",
        "directional",
        "The gradient loses the sign of the scalar, and no reference tells.",
        SCALED_SQUARE.but(backward=_signless_gradient, has_reference=False),
    ),
    plant(
        "tile_of_eight",
        "only for sizes that divide",
        "sizes",
        "Rows of a multiple of 8 take a vector path that is wrong.",
        CUBE.but(kernel=_where(lambda shape: shape[-1] > 0 and shape[-1] % 8 == 0)),
    ),
    plant(
        "tile_of_two",
        "only for sizes that divide",
        "sizes",
        "Rows of 2 are doubled.",
        CUBE.but(kernel=_where(lambda shape: shape[-1] == 2)),
    ),
    plant(
        "tile_of_a_block",
        "only for sizes that divide",
        "sizes",
        "Exactly one block of 256 is wrong.",
        CUBE.but(kernel=_where(lambda shape: shape[-1] == 256)),
    ),
    plant(
        "tile_gradient",
        "only for sizes that divide",
        "sizes",
        "The gradient of rows of a multiple of 16 is wrong.",
        CUBE.but(backward=_gradient_where(lambda shape: shape[-1] > 0 and shape[-1] % 16 == 0)),
    ),
    plant(
        "tile_gradient_without_reference",
        "only for sizes that divide",
        "directional",
        "The gradient of rows of a multiple of 16 is wrong, and no reference tells.",
        CUBE.but(
            backward=_gradient_where(lambda shape: shape[-1] > 0 and shape[-1] % 16 == 0),
            has_reference=False,
        ),
    ),
    plant(
        "small_logarithm",
        "small numbers",
        "reference",
        "The logarithm of 1 + x² loses what is small beside 1.",
        CURVE.but(kernel=lambda x: torch.log(1 + x * x).contiguous()),
    ),
    plant(
        "small_gradient",
        "small numbers",
        "reference_gradients",
        "The gradient of numbers below 1e-4 is zero.",
        CURVE.but(backward=lambda grad, x: 2 * grad * x / (1 + x * x) * (x.abs() >= 1e-4)),
    ),
    plant(
        "low_precision_step",
        "only in one dtype",
        "low_precision",
        "A step without gradients is off by 1 in bfloat16.",
        STEP.but(default=_steps_in_bfloat16),
    ),
    plant(
        "fake_of_the_samples_dtype",
        "dtype of a fake",
        "fake",
        "The fake kernel says float32, which is the dtype of the samples only.",
        CUBE.but(fake=lambda x: x.new_empty(x.shape, dtype=torch.float32)),
    ),
    plant(
        "fake_of_float16",
        "dtype of a fake",
        "fake",
        "The fake kernel says float32 of float16.",
        CUBE.but(
            fake=lambda x: x.new_empty(x.shape, dtype=torch.float32 if x.dtype == torch.float16 else x.dtype),
        ),
    ),
    plant(
        "fake_of_integers",
        "dtype of a fake",
        "fake",
        "The fake kernel says float32 of integers, which the op keeps.",
        CUBE.but(fake=lambda x: x.new_empty(x.shape, dtype=x.dtype if x.is_floating_point() else torch.float32)),
    ),
    plant(
        "fake_below_a_thousand",
        "shape of a fake",
        "fake",
        "The fake kernel cuts rows at 1000.",
        CUBE.but(fake=_grows_to(1000)),
    ),
    plant(
        "symbolic_edge",
        "symbolic specialisation",
        "symbolic",
        "The fake kernel cuts rows at 5000.",
        CUBE.but(fake=_grows_to(5000), samples=_ranked),
    ),
    plant(
        "shared_memory_of_inputs",
        "one tensor twice",
        "shared_inputs",
        "Where both arguments are one tensor, the second result is zero.",
        POLAR.but(kernel=_polar_of_one),
    ),
    plant(
        "shared_gradient",
        "one tensor twice",
        "shared_inputs",
        "Where both arguments are one tensor, one gradient is taken for both.",
        POLAR.but(backward=_one_gradient_for_both),
    ),
    plant(
        "cotangent_one_stride",
        "incoming gradient misread",
        "cotangents",
        "A gradient with a stride of 0 is taken for one number.",
        CUBE.but(
            backward=lambda grad, x: 3 * (grad.flatten()[0] if grad.numel() and 0 in grad.stride() else grad) * x * x
        ),
    ),
    plant(
        "jvp_clamped",
        "not linear",
        "forward_mode",
        "The tangent is clamped to ±4.",
        GROWTH.but(jvp=_clamped_tangent),
    ),
    plant(
        "jvp_larger",
        "not linear",
        "forward_mode",
        "Tangents above 1000 are a tenth too large.",
        GROWTH.but(jvp=_large_tangent),
    ),
)
