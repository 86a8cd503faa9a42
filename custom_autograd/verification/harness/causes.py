"""Why two tensors that should be equal are not, probably: the first explanation that accounts for every element.

Of the causes of several findings, one is chosen that accounts for everything that was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import Tensor

Explanation: TypeAlias = "Callable[[Tensor, Tensor, float], Iterator[Cause]]"
"""Found, expected and how near it has to come, relative to the largest element: yields what explains the difference."""

Claim: TypeAlias = Literal["", "factor", "mean", "offset", "precision"]
"""What a cause says of every element; empty where it describes one tensor and says nothing of others."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The numbers that a cause is to explain.

    Args:
        found: what came.
        expected: what should have come, of the same shape.
        relative: how near an explanation has to come, relative to the largest element.
    """

    found: Tensor
    expected: Tensor
    relative: float

    def finite(self) -> Measured | None:
        """Return the numbers without those that are equal and not finite; None if others are not finite."""
        found, expected = self.found.flatten(), self.expected.flatten()
        is_same = (found == expected) | (found.isnan() & expected.isnan())
        is_finite = found.isfinite() & expected.isfinite()
        if not bool((is_finite | is_same).all()):
            return None
        return Measured(found[is_finite], expected[is_finite], self.relative)

    def scale(self) -> float:
        """Return the size of the largest number that is expected."""
        return float(self.expected.abs().max()) if self.expected.numel() else 0.0


class Cause(str):
    """A probable cause, with what it claims of every element; empty where nothing simple explains the numbers.

    Attributes:
        claim: the kind of the claim.
        number: the factor, the offset, or the largest relative error of a rounding.
        relative: how precisely the number is known, relative to it.
        measured: the numbers that it was found for; None if it is not about numbers.
        explanation: what found it; None for a text.
    """

    claim: Claim = ""
    number: complex = 0.0
    relative: float = 0.0
    measured: Measured | None = None
    explanation: Explanation | None = None

    def accounts_for(self, other: str) -> bool:
        """Return True if the claim, applied to the numbers of another finding, gives what was found there.

        A cause that claims nothing of every element has to be found in these numbers as well.
        """
        measured = other.measured if isinstance(other, Cause) else None
        if measured is None:
            return True
        if not self.claim:
            explain = self.explanation
            return explain is None or any(explain(measured.found, measured.expected, measured.relative))
        if self.claim == "mean" and isinstance(other, Cause) and other.claim == "mean":
            return True  # over another number of elements
        finite = measured.finite()
        return finite is not None and bool((self._distance(finite) <= self._bound(finite)).all())

    def _distance(self, measured: Measured) -> Tensor:
        if self.claim == "offset":
            return (measured.found - measured.expected - self.number).abs()
        if self.claim == "precision":
            return (measured.found - measured.expected).abs()
        return (measured.found - self.number * measured.expected).abs()

    def _bound(self, measured: Measured) -> Tensor:
        if self.claim == "precision":
            return abs(self.number) * measured.expected.abs().clamp(min=LEAST_ROUNDED * measured.scale())
        size = abs(self.number)
        if self.claim == "offset":
            return measured.relative * measured.scale() + 2 * self.relative * size + 0 * measured.expected.abs()
        rest = measured.relative * measured.scale() * max(1.0, size) + NEGLIGIBLE
        return rest + 2 * self.relative * size * measured.expected.abs()


def make_claim(text: str, claim: Claim, number: complex, relative: float) -> Cause:
    """Return a cause that applies to every element, with the attributes of `Cause`."""
    cause = Cause(text)
    cause.claim, cause.number, cause.relative = claim, number, relative
    return cause


def choose_cause(causes: Sequence[str]) -> str:
    """Return the first cause that accounts for all findings.

    Args:
        causes: one for each finding; a plain text, or an empty one, is of a finding without numbers.

    Returns:
        The text; empty if there is none. Factors that differ from finding to finding are listed.
    """
    for cause in causes:
        if cause and (not isinstance(cause, Cause) or all(map(cause.accounts_for, causes))):
            return str(cause)
    return _differing_factors(causes)


def _differing_factors(causes: Sequence[str]) -> str:
    """Return the factors, if each finding with numbers that are not to be zero has one; empty otherwise."""
    compared = [x for x in causes if isinstance(x, Cause) and (x.measured is None or x.measured.scale() > 0)]
    if not compared or any(cause.claim not in ("factor", "mean") for cause in compared):
        return ""
    numbers = [complex(cause.number) for cause in compared]
    texts = list(dict.fromkeys(f"{x:.6g}" if x.imag else f"{x.real:.6g}" for x in numbers))
    return f"a factor that differs: {', '.join(texts[:MOST_FACTORS])}" + (", ..." if len(texts) > MOST_FACTORS else "")


MOST_FACTORS = 4
"""Factors that a cause lists."""

NEGLIGIBLE = 1e-30
"""A difference that is smaller is none, whatever the numbers are: the smallest have no precision left."""

LEAST_ROUNDED = 1e-3
"""Elements that are smaller than this, relative to the largest, are what is left where terms cancel."""

CLOSE = 1e-5
"""How near an explanation has to come, relative to the largest element; rounding in float32 stays below."""

BLOCK = 16
"""Kernels work in blocks of multiples of this: a tail that begins elsewhere, and is most of a tensor, is none."""

FEWEST_ROUNDED = 3
"""Elements that are not zero, below which the errors of a wrong formula look like those of rounding."""

MANY_ROUNDED = 8
"""Elements from which the errors of small ones are compared with those of large ones."""


def find_cause(found: Tensor, expected: Tensor, *, relative: float = CLOSE) -> Cause:
    """Return one phrase, such as "the sign is flipped"; empty where nothing simple explains the difference.

    Args:
        found: what came.
        expected: what should have come; of any shape.
        relative: how near an explanation has to come.
    """
    if found.shape != expected.shape:
        return Cause(_of_shapes(found, expected, relative))
    return _first(EXPLANATIONS, found, expected, relative)


def find_uniform_cause(found: Tensor, expected: Tensor, *, relative: float = CLOSE) -> Cause:
    """Return a cause that holds for each element alone, for a selection of the elements of two tensors."""
    return _first((_nan, _lost_nan, _ratio, _offset), found, expected, relative)


def _first(rows: Sequence[Explanation], found: Tensor, expected: Tensor, relative: float) -> Cause:
    causes = ((cause, row) for row in rows for cause in row(found, expected, relative))
    cause, explanation = next(causes, (Cause(), None)) if found.numel() else (Cause(), None)
    cause.measured, cause.explanation = Measured(found, expected, relative), explanation
    return cause


def find_swap(
    names: Sequence[str], found: Sequence[Tensor], expected: Sequence[Tensor], position: int, *, relative: float = CLOSE
) -> Cause:
    """Return that one of several tensors and another one of the same shape are swapped; empty if none is.

    Args:
        names: what to call each tensor.
        found: what came.
        expected: what should have come.
        position: of the wrong one.
        relative: how near each has to come to what is expected of the other.
    """
    for other in range(len(found)):
        is_right = other == position or _is_near(found[other], expected[other], relative)
        is_swapped = _is_near(found[other], expected[position], relative) and _is_near(
            found[position], expected[other], relative
        )
        if is_swapped and not is_right:
            first, second = sorted((position, other))
            return Cause(f"{names[first]} and {names[second]} are swapped")
    return Cause()


def _is_near(one: Tensor, other: Tensor, relative: float) -> bool:
    if one.shape != other.shape or not one.numel():
        return False
    scale = float(other.abs().nan_to_num(nan=0.0, posinf=0.0).max())
    return bool(((one - other).abs() <= relative * scale + NEGLIGIBLE).all())


def _of_shapes(found: Tensor, expected: Tensor, relative: float) -> str:
    """Return the cause of a wrong shape: a gradient that is not summed over broadcast dimensions, or transposed."""
    if found.dim() >= expected.dim():
        for dims in _dims(found.dim()):
            for keepdim in (False, True):
                if _is_near(found.sum(dims, keepdim=keepdim), expected, relative):
                    return f"it is not reduced over dim {', '.join(map(str, dims))}"
    if found.dim() >= 2 and _is_near(found.mT, expected, relative):
        return "it is transposed"
    return ""


def _dims(number: int) -> Iterator[tuple[int, ...]]:
    yield from ((dim,) for dim in range(number))
    if number > 1:
        yield tuple(range(number))
        yield tuple(range(number - 1))


def _nan(found: Tensor, expected: Tensor, _: float) -> Iterator[Cause]:
    new = found.isnan() & ~expected.isnan()
    if bool(new.any()):
        yield Cause(f"{_share(new)} nan where a number belongs")


def _lost_nan(found: Tensor, expected: Tensor, _: float) -> Iterator[Cause]:
    lost = expected.isnan() & ~found.isnan()
    if bool(lost.any()):
        yield Cause(f"nan does not propagate: {_share(lost)} a number")


def _zero(found: Tensor, expected: Tensor, relative: float) -> Iterator[Cause]:
    if not bool(found.any()) and bool(expected.any()):
        yield make_claim("it is zero everywhere: the term is dropped", "factor", 0.0, relative)


def _ratio(found: Tensor, expected: Tensor, relative: float) -> Iterator[Cause]:
    """Yield one factor for all elements: of at least two sizes, unless it is a whole number or the inverse of one."""
    pair = Measured(found, expected, relative).finite()
    norm = 0.0 if pair is None else float((pair.expected.conj() * pair.expected).real.sum())
    if pair is None or norm == 0:
        return
    ratio = complex(((pair.expected.conj() * pair.found).sum() / norm).item())
    nearness = min(relative, 1e-6) if abs(ratio - 1) < 10 * relative else relative
    if not ratio or not _is_multiple(pair.found, ratio * pair.expected, nearness) or abs(ratio - 1) < 10 * nearness:
        return
    if _is_varied(pair.expected[pair.expected != 0], relative) or _is_whole(ratio, relative):
        yield _factor(ratio, expected, nearness)


def _is_multiple(found: Tensor, expected: Tensor, relative: float) -> bool:
    """Return True if each element is near, relative to itself, but for what cancels in a sum of larger terms."""
    scale = float(expected.abs().max())
    return bool(((found - expected).abs() <= relative * (expected.abs() + 0.1 * scale) + NEGLIGIBLE).all())


def _is_varied(values: Tensor, relative: float) -> bool:
    """Return True if there are two numbers that differ: one number alone has a ratio and an offset to any other."""
    if values.numel() < 2:
        return False
    return float((values - values[0]).abs().max()) > max(1e-2, 10 * relative) * float(values.abs().max())


def _is_whole(ratio: complex, relative: float) -> bool:
    """Return True if a ratio is -1, a larger whole number, or one over it, more nearly than chance makes it."""
    nearness = min(max(relative, 1e-6), 1e-4)
    if abs(ratio.imag) > nearness * abs(ratio):
        return False
    size = max(abs(ratio), 1 / abs(ratio))
    is_near = size * nearness < 0.02 and abs(size - round(size)) <= nearness * size
    return is_near and (round(size) > 1 or ratio.real < 0)


def _factor(ratio: complex, expected: Tensor, relative: float) -> Cause:
    if expected.is_complex() and abs(ratio.imag) > 1e-3:
        return make_claim(f"a factor {ratio:.6g}", "factor", ratio, relative)
    if abs(ratio + 1) < 1e-4:
        return make_claim("the sign is flipped", "factor", ratio.real, relative)
    real = ratio.real
    size = round(1 / real) if abs(real) > 1e-6 else 0
    if size > 1 and abs(real * size - 1) < 1e-4 and (size > 2 or size in expected.shape):
        text = f"a factor 1/{size}: a mean where a sum belongs, or a factor {size} that is left out"
        return make_claim(text, "mean", real, relative)
    return make_claim(f"a factor {real:.6g}", "factor", real, relative)


def _offset(found: Tensor, expected: Tensor, relative: float) -> Iterator[Cause]:
    """Yield one number that is added to all elements, however large they are."""
    pair = Measured(found, expected, relative).finite()
    if pair is None or not _is_varied(pair.expected, relative):
        return
    errors = pair.found - pair.expected
    offset, noise = complex(errors.mean().item()), 0.25 * relative * pair.scale()
    known = max(1e-3 * abs(offset), noise)
    if not offset or abs(offset) < 4 * noise or bool(((errors - errors.mean()).abs() > known).any()):
        return
    shown = f"{offset:.4g}" if found.is_complex() and abs(offset.imag) > noise else f"{offset.real:.4g}"
    yield make_claim(f"a constant offset of {shown}", "offset", offset, known / abs(offset))


def _conjugate(found: Tensor, expected: Tensor, relative: float) -> Iterator[Cause]:
    if expected.is_complex() and _is_near(found, expected.conj(), relative):
        yield Cause("it is the complex conjugate: a conj() is missing, or there is one too many")


def _transposed(found: Tensor, expected: Tensor, relative: float) -> Iterator[Cause]:
    if found.dim() >= 2 and found.shape[-1] == found.shape[-2] and _is_near(found, expected.mT, relative):
        yield Cause("it is transposed")


def _moved(found: Tensor, expected: Tensor, relative: float) -> Iterator[Cause]:
    if found.numel() > 2 and not found.is_complex():
        for dim in range(found.dim()):
            if found.shape[dim] > 1 and _is_near(found.flip(dim), expected, relative):
                yield Cause(f"it is reversed along dim {dim}")
            for step in (-1, 1):
                if found.shape[dim] > 2 and _is_near(found.roll(step, dim), expected, relative):
                    yield Cause(f"it is shifted by {-step} along dim {dim}")
        pair = found.flatten().sort().values, expected.flatten().sort().values
        gap = 0.25 / found.numel()  # many numbers of the same distribution are near each other once they are sorted
        if len(expected.unique()) > 2 and _is_near(*pair, min(relative, gap)):
            yield Cause("the right numbers stand in other places: strides or an order are ignored")


def _part(found: Tensor, expected: Tensor, relative: float) -> Iterator[Cause]:
    """Yield that only some elements are wrong: a tail, one slice, everything from an index on."""
    same = (found == expected) | (found.isnan() & expected.isnan())
    scale = float(expected.abs().nan_to_num(nan=0.0, posinf=0.0).max())
    wrong = ~same & ~((found - expected).abs() <= relative * scale + NEGLIGIBLE)
    number, total = int(wrong.sum()), wrong.numel()
    if not 0 < number < total:
        return
    flat = wrong.flatten()
    first = int(flat.nonzero()[0])
    is_unset = not bool(found.flatten()[first:].any())
    if number == total - first and (is_unset or 2 * number <= total or first % BLOCK == 0):
        what = "unset" if is_unset else "wrong"
        yield Cause(f"a tail of {number} element{'s' if number > 1 else ''} is {what}, from element {first} on")
        return
    for dim in range(found.dim()):
        others = [other for other in range(found.dim()) if other != dim]
        slices = wrong.sum(others) if others else wrong.long()
        hit = slices.nonzero().flatten().tolist()
        if len(hit) == 1 and found.shape[dim] > 1:
            yield Cause(f"only index {hit[0]} of dim {dim} is wrong")
            return
    yield Cause(f"{number} of {total} elements are wrong")


def _rounding(found: Tensor, expected: Tensor, relative: float) -> Iterator[Cause]:
    """Yield a step in a narrower dtype: relative errors are bounded, and as large for small elements as for large."""
    pair = Measured(found, expected, relative).finite()
    if pair is None or not bool(pair.expected.any()):
        return
    sizes = pair.expected.abs()
    errors = (pair.found - pair.expected).abs() / sizes.clamp(min=LEAST_ROUNDED * pair.scale())
    error = float(errors.max())
    if not _is_spread(errors[sizes > 0], sizes[sizes > 0]):
        return
    for limit, name in ((4e-7, "float32"), (2e-3, "float16"), (1.5e-2, "bfloat16")):
        if 0 < error < limit:
            text = f"precision: an error of {error:.1g} is what a step in {name} makes"
            yield make_claim(text, "precision", limit, 0.0)
            return


def _is_spread(errors: Tensor, sizes: Tensor) -> bool:
    """Return True if relative errors are about the same for small and for large elements, of which there are enough."""
    if errors.numel() < FEWEST_ROUNDED:
        return False
    halves = errors[sizes.argsort()].tensor_split(2)
    small, large = (float(half.square().mean().sqrt()) for half in halves)
    return errors.numel() < MANY_ROUNDED or 0.2 * large < small < 5 * large


def _share(where: Tensor) -> str:
    number, total = int(where.sum()), where.numel()
    return f"all {total} elements are" if number == total else f"{number} of {total} elements are"


EXPLANATIONS: tuple[Explanation, ...] = (
    _nan,
    _lost_nan,
    _zero,
    _ratio,
    _offset,
    _rounding,
    _conjugate,
    _transposed,
    _moved,
    _part,
)
"""The most telling first."""
