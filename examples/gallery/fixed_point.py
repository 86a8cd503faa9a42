"""The fixed point of a layer, as in deep equilibrium models: found by iteration, differentiated by a linear solve.

    fixed_point:         z = tanh(weight · z + drive),         where drive is U · x + b, as F.linear(x, U, b) makes it
    linear_fixed_point:  v = slope ⊙ (weight · v + source),    which is what both differentiate to

Dtypes: all of one, float64, float32, bfloat16 or float16; iterates are float64 for float64, else float32.
Convergence: no element changes by more than `tolerance` (<= 1e-4) or 16 last places, times the largest of its row.
Not so after `limit` iterations, or values that are not finite: ConvergenceError. A norm of weight below 1 suffices.
Iterates are not saved, so memory does not depend on their number. A GPU is waited for in each: no CUDA graph.
Source: Bai et al. 2019, "Deep Equilibrium Models", equation 3; gradients by the implicit function theorem, theorem 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


class ConvergenceError(RuntimeError):
    """An iteration does not reach its fixed point."""


def check_dtypes(*tensors: Tensor) -> None:
    """All of one real dtype."""
    if len(dtypes := {x.dtype for x in tensors}) > 1 or not tensors[0].is_floating_point():
        raise ValueError(f"gallery::fixed_point: expected one real dtype; found {', '.join(map(str, dtypes))}")


def iterate(step: Callable[[Tensor], Tensor], z: Tensor, tolerance: float, limit: int) -> Tensor:
    """Applies step to z until it changes nothing."""
    if z.numel() == 0:
        return step(z)
    if not 0 <= tolerance <= 1e-4:
        raise ValueError(f"gallery::fixed_point: expected a tolerance from 0 to 1e-4; found {tolerance}")
    bound, change = max(tolerance, 16 * torch.finfo(z.dtype).eps), torch.tensor(torch.inf)
    for _ in range(limit):
        last, z = z, step(z)
        change = (z - last).detach().abs() / z.detach().abs().amax(-1, keepdim=True).clamp(torch.finfo(z.dtype).tiny)
        if bool((change <= bound).all()):
            return z.contiguous()
        if not bool(change.isfinite().all()):
            break
    problem = f"a relative change of {change.max():.3g}, expected at most {bound:.3g} within {limit} iterations"
    raise ConvergenceError(f"gallery::fixed_point: no convergence: {problem}; make the norm of 'weight' less than 1")


def wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    """In the dtype of the arithmetic."""
    return tuple(x.to(torch.promote_types(x.dtype, torch.float32)) for x in tensors)


# As a reference it is differentiated through all its iterations; as a kernel it records none.
@custom_op("gallery::fixed_point", outputs=("z",), reference=True, tags=torch.Tag.cudagraph_unsafe,
    shapes="weight: *b [f f], drive: *b n [f] -> z: *b n [f]")  # fmt: skip
def fixed_point(weight: Tensor, drive: Tensor, tolerance: float = 0.0, limit: int = 1000) -> Tensor:
    """Solves z = tanh(weight · z + drive) for each row of drive."""
    check_dtypes(weight, drive)
    matrix, constant = wide(weight.mT, drive)
    return iterate(lambda z: torch.tanh(z @ matrix + constant), constant.tanh(), tolerance, limit).to(drive.dtype)


@custom_op("gallery::linear_fixed_point", outputs=("v",), tags=torch.Tag.cudagraph_unsafe,
    shapes="weight: *b [f f], slope: *b n [f], source: *b n [f] -> v: *b n [f]")  # fmt: skip
def linear_fixed_point(
    weight: Tensor, slope: Tensor, source: Tensor, tolerance: float = 0.0, limit: int = 1000
) -> Tensor:
    """Solves v = slope ⊙ (weight · v + source) for each row, as fast as the last steps of fixed_point."""
    check_dtypes(weight, slope, source)
    matrix, factor, constant = wide(weight.mT, slope, source)
    return iterate(lambda v: factor * (v @ matrix + constant), factor * constant, tolerance, limit).to(source.dtype)


# Dense and direct, so an independent check of the iteration.
@linear_fixed_point.register_reference
def _(weight, slope, source, tolerance=0.0, limit=1000):
    matrix, factor, constant = wide(weight, slope, source)
    system = torch.eye(weight.shape[-1]).to(matrix) - factor.unsqueeze(-1) * matrix.unsqueeze(-3)
    return torch.linalg.solve(system, factor * constant).to(source.dtype).contiguous()


@fixed_point.register_fake
def _(weight, drive, tolerance, limit):
    check_dtypes(weight, drive)
    return drive.new_empty(drive.shape)


# dz = (1 - z²) ⊙ (weight · dz + dweight · z + ddrive), which is linear_fixed_point; its adjoint has weight transposed.
@fixed_point.register_backward
def _(grad, weight, z, tolerance, limit):
    drive = linear_fixed_point(weight.mT, (1 - z) * (1 + z), grad, tolerance, limit)
    return {"weight": lambda: drive.mT @ z, "drive": drive}


@fixed_point.register_jvp
def _(tangent_weight, tangent_drive, weight, z, tolerance, limit):
    source = torch.zeros_like(z) if tangent_drive is None else tangent_drive
    source = source if tangent_weight is None else source + z @ tangent_weight.mT
    return linear_fixed_point(weight, (1 - z) * (1 + z), source, tolerance, limit)


# With λ = grad + weightᵀ · (slope ⊙ λ): on source slope ⊙ λ, the op again, and on slope λ ⊙ (weight · v + source).
@linear_fixed_point.register_backward
def _(grad, weight, slope, source, v, tolerance, limit):
    on_source = linear_fixed_point(weight.mT, slope, grad, tolerance, limit)
    return {
        "weight": lambda: on_source.mT @ v,
        "slope": lambda: (on_source @ weight + grad) * (v @ weight.mT + source),
        "source": on_source,
    }


@fixed_point.register_vmap
def _(info, in_dims, weight, drive, tolerance, limit):
    dims = zip((weight, drive), in_dims[:2], strict=True)
    moved = (x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in dims)
    return fixed_point(*moved, tolerance, limit), 0


for device_type in ("cpu", "cuda"):  # iterates in bfloat16 would not settle to float32
    fixed_point.register_autocast(device_type, "float32")
    linear_fixed_point.register_autocast(device_type, "float32")


@fixed_point.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    yield Sample(make(4, 4, low=-0.2, high=0.2), make(3, 4))
    yield Sample(make(2, 3, 3, low=-0.2, high=0.2), make(2, 2, 3), limit=500)  # leading dimensions
    yield Sample(make(1, 1, low=-0.5, high=0.5), make(0, 1))  # no rows
    yield Sample(make(2, 2, low=5.0), make(1, 2), limit=1).raises(
        ConvergenceError, match="expected at most .* within 1"
    )
    yield Sample(make(2, 3), make(1, 3)).raises(ValueError, match="'weight' must be .* with f = 2")


@linear_fixed_point.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    yield Sample(make(4, 4, low=-0.2, high=0.2), make(3, 4, low=0.0, high=1.0), make(3, 4))


if __name__ == "__main__":
    linear_fixed_point.check()
    fixed_point.check()
