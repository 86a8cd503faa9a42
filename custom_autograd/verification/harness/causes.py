"""Why two tensors that should be equal are not, probably: the first explanation that accounts for every element."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

CLOSE = 1e-5
"""How near an explanation has to come, relative to the largest element; rounding in float32 stays below."""


BLOCK = 16
"""Kernels work in blocks of multiples of this: a tail that begins elsewhere, and is most of a tensor, is none."""


def find_cause(found: Tensor, expected: Tensor, *, relative: float = CLOSE) -> str:
    """One phrase, such as "the sign is flipped"; empty where nothing simple explains the difference.

    Args:
        found: what came.
        expected: what should have come; of any shape.
        relative: how near an explanation has to come.
    """
    if found.shape != expected.shape:
        return _of_shapes(found, expected, relative)
    if not found.numel():
        return ""
    return next((text for row in EXPLANATIONS for text in row(found, expected, relative)), "")


def _is_near(one: Tensor, other: Tensor, relative: float) -> bool:
    if one.shape != other.shape or not one.numel():
        return False
    scale = float(other.abs().nan_to_num(nan=0.0, posinf=0.0).max())
    return bool(((one - other).abs() <= relative * scale + 1e-30).all())


def _of_shapes(found: Tensor, expected: Tensor, relative: float) -> str:
    """A gradient that was not summed over the dimensions along which its input was broadcast."""
    if found.dim() >= expected.dim():
        for dims in _dims(found.dim()):
            for keepdim in (False, True):
                if _is_near(found.sum(dims, keepdim=keepdim), expected, relative):
                    return f"it is not reduced over dim {', '.join(map(str, dims))}"
    if found.dim() >= 2 and found.mT.shape == expected.shape:
        return "it is transposed"
    return ""


def _dims(number: int) -> Iterator[tuple[int, ...]]:
    yield from ((dim,) for dim in range(number))
    if number > 1:
        yield tuple(range(number))
        yield tuple(range(number - 1))


def _nan(found: Tensor, expected: Tensor, _: float) -> Iterator[str]:
    new = found.isnan() & ~expected.isnan()
    if bool(new.any()):
        yield f"{_share(new)} nan where a number belongs"
    lost = expected.isnan() & ~found.isnan()
    if bool(lost.any()):
        yield f"nan does not propagate: {_share(lost)} a number"


def _zero(found: Tensor, expected: Tensor, _: float) -> Iterator[str]:
    if not bool(found.any()) and bool(expected.any()):
        yield "it is zero everywhere: the term is dropped"


def _ratio(found: Tensor, expected: Tensor, relative: float) -> Iterator[str]:
    if found.isnan().any() or expected.isnan().any() or not bool(expected.isfinite().all()):
        return
    norm = (expected.conj() * expected).real.sum()
    if float(norm) == 0 or expected.numel() < 1:
        return
    ratio = ((expected.conj() * found).sum() / norm).item()
    nearness = min(relative, 1e-6) if abs(ratio - 1) < 10 * relative else relative
    if not _is_near(found, ratio * expected, nearness) or abs(ratio - 1) < 10 * nearness:
        return
    if expected.is_complex() and abs(complex(ratio).imag) > 1e-3:
        yield f"a factor {complex(ratio):.6g}"
        return
    yield _factor(complex(ratio).real, expected)


def _factor(ratio: float, expected: Tensor) -> str:
    if abs(ratio + 1) < 1e-4:
        return "the sign is flipped"
    size = round(1 / ratio) if abs(ratio) > 1e-6 else 0
    if size > 1 and abs(ratio * size - 1) < 1e-4 and (size > 2 or size in expected.shape):
        return f"a factor 1/{size}: a mean where a sum belongs"
    return f"a factor {ratio:.6g}"


def _conjugate(found: Tensor, expected: Tensor, relative: float) -> Iterator[str]:
    if expected.is_complex() and _is_near(found, expected.conj(), relative):
        yield "it is the complex conjugate: a conj() is missing, or there is one too many"


def _order(found: Tensor, expected: Tensor, relative: float) -> Iterator[str]:
    if found.dim() >= 2 and found.shape[-1] == found.shape[-2] and _is_near(found, expected.mT, relative):
        yield "it is transposed"
    if found.numel() > 2 and not found.is_complex():
        for dim in range(found.dim()):
            if found.shape[dim] > 1 and _is_near(found.flip(dim), expected, relative):
                yield f"it is reversed along dim {dim}"
            for step in (-1, 1):
                if found.shape[dim] > 2 and _is_near(found.roll(step, dim), expected, relative):
                    yield f"it is shifted by {-step} along dim {dim}"
        pair = found.flatten().sort().values, expected.flatten().sort().values
        if _is_near(*pair, relative):
            yield "the right numbers stand in other places: strides or an order are ignored"


def _part(found: Tensor, expected: Tensor, relative: float) -> Iterator[str]:
    """Only some elements are wrong: a tail, one slice, everything from a place on."""
    same = (found == expected) | (found.isnan() & expected.isnan())
    scale = float(expected.abs().nan_to_num(nan=0.0, posinf=0.0).max())
    wrong = ~same & ~((found - expected).abs() <= relative * scale + 1e-30)
    number, total = int(wrong.sum()), wrong.numel()
    if not 0 < number < total:
        return
    flat = wrong.flatten()
    first = int(flat.nonzero()[0])
    is_unset = not bool(found.flatten()[first:].any())
    if number == total - first and (is_unset or 2 * number <= total or first % BLOCK == 0):
        what = "unset" if is_unset else "wrong"
        yield f"a tail of {number} element{'s' if number > 1 else ''} is {what}, from element {first} on"
        return
    for dim in range(found.dim()):
        others = [other for other in range(found.dim()) if other != dim]
        slices = wrong.sum(others) if others else wrong.long()
        hit = slices.nonzero().flatten().tolist()
        if len(hit) == 1 and found.shape[dim] > 1:
            yield f"only index {hit[0]} of dim {dim} is wrong"
            return
    yield f"{number} of {total} elements are wrong"


def _rounding(found: Tensor, expected: Tensor, _: float) -> Iterator[str]:
    """A step in a narrower dtype makes no larger error in the element that is most wrong, relative to itself."""
    if found.dtype not in (torch.float64, torch.complex128) or not bool(expected.isfinite().all()):
        return
    errors = (found - expected).abs().flatten()
    worst = int(errors.argmax())
    size = float(expected.flatten()[worst].abs())
    error = float(errors[worst]) / size if size else 0.0
    for limit, name in ((4e-7, "float32"), (2e-3, "float16"), (1.5e-2, "bfloat16")):
        if 0 < error < limit:
            yield f"precision: an error of {error:.1g} is what a step in {name} makes"
            return


def _share(where: Tensor) -> str:
    number, total = int(where.sum()), where.numel()
    return f"all {total} elements are" if number == total else f"{number} of {total} elements are"


EXPLANATIONS: tuple[Callable[[Tensor, Tensor, float], Iterator[str]], ...] = (
    _nan,
    _zero,
    _ratio,
    _rounding,
    _conjugate,
    _order,
    _part,
)
"""The most telling first."""
