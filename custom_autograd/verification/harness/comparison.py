"""Where two results differ, in one sentence: which element, which numbers, which ratio; and why, probably."""

import cmath
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from custom_autograd.verification.harness.base import PASSED, Finding, NothingToCheckError, failed
from custom_autograd.verification.harness.causes import find_cause, find_swap


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Two numbers agree if |a - b| <= absolute + relative * |b|."""

    relative: float
    absolute: float
    reason: str


def tolerance_of(dtype: torch.dtype) -> Tolerance:
    """Return the tolerance between two ways to compute the same thing in a dtype; exact for integers and bools."""
    return TOLERANCES.get(dtype, EXACT)


EXACT = Tolerance(0.0, 0.0, "integers and bools have no rounding")

TOLERANCES: dict[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(
        1e-7, 1e-7, "2**-53 is 1.1e-16; a kernel may keep a statistic in float32, whose error is 6e-8"
    ),
    torch.float32: Tolerance(1.3e-5, 1e-5, "2**-24 is 6e-8; about 200 roundings, as torch.testing allows"),
    torch.float16: Tolerance(2e-3, 1e-3, "2**-11 is 4.9e-4; four roundings of the result"),
    torch.bfloat16: Tolerance(1.6e-2, 1e-2, "2**-8 is 3.9e-3; four roundings of the result"),
    torch.complex128: Tolerance(1e-7, 1e-7, "as float64, for each part"),
    torch.complex64: Tolerance(1.3e-5, 1e-5, "as float32, for each part"),
}


@dataclass(frozen=True, slots=True)
class Difference:
    """Two tensors that should agree and do not.

    Args:
        message: which element of which tensor, by how much.
        cause: why, probably; empty if unknown.
    """

    message: str
    cause: str = ""

    def __str__(self) -> str:
        return self.message


def judged(difference: Difference | None, text: str, *, cause: str = "") -> Finding:
    """Return a pass, or the failure with a text, in which "{}" stands for the difference; its cause by default."""
    if difference is None:
        return PASSED
    return failed(text.replace("{}", difference.message), cause=cause or difference.cause)


def find_difference(
    actual: Sequence[Tensor],
    expected: Sequence[Tensor],
    *,
    names: Sequence[str] = (),
    factor: float = 1.0,
) -> Difference | None:
    """Return the first difference between two lists of tensors, or None.

    Args:
        actual: what is checked.
        expected: what it should be.
        names: what to call each tensor; "output 0", ... by default.
        factor: widens the tolerance of the dtype.
    """
    if len(actual) != len(expected):
        return Difference(f"{len(actual)} tensors, expected {len(expected)}")
    for position, (one, other) in enumerate(zip(actual, expected, strict=True)):
        name = names[position] if position < len(names) else f"output {position}"
        difference = _metadata(name, one, other) or _value(name, one, other, factor)
        if difference is not None:
            swap = _swap(actual, expected, names, position) if len(actual) > 1 else ""
            return Difference(difference.message, swap) if swap else difference
    return None


def require_same(again: Sequence[Tensor], first: Sequence[Tensor]) -> None:
    """Raise NothingToCheckError if the same call gives other results the second time: nothing compares with them."""
    if find_difference(again, first) is not None:
        raise NothingToCheckError("the op gives other results from one call to the next")


def widened(tensor: Tensor) -> Tensor:
    """Return the tensor in the widest dtype of its kind, dense, on the CPU, so that comparing does not round."""
    dense = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
    return dense.resolve_conj().resolve_neg().to("cpu", torch.complex128 if tensor.is_complex() else torch.float64)


def is_same(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors have the same values to the last bit; nan equals nan."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = one.detach(), other.detach()
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _swap(actual: Sequence[Tensor], expected: Sequence[Tensor], names: Sequence[str], position: int) -> str:
    """Return that a tensor and another one are swapped, each near what is expected of the other; empty if not."""
    known = [names[i] if i < len(names) else f"output {i}" for i in range(len(actual))]
    relative = 10 * tolerance_of(expected[position].dtype).relative
    return find_swap(known, [*map(widened, actual)], [*map(widened, expected)], position, relative=relative)


def _metadata(name: str, actual: Tensor, expected: Tensor) -> Difference | None:
    if actual.shape != expected.shape:
        cause = find_cause(widened(actual), widened(expected))
        return Difference(f"{name} has shape {tuple(actual.shape)}, expected {tuple(expected.shape)}", cause)
    if actual.dtype != expected.dtype:
        return Difference(f"{name} has dtype {actual.dtype}, expected {expected.dtype}")
    return None


def _value(name: str, actual: Tensor, expected: Tensor, factor: float) -> Difference | None:
    """Return the worst element outside the tolerance; nan equals nan."""
    tolerance = tolerance_of(expected.dtype)
    one, other = widened(actual), widened(expected)
    same = (one == other) | (one.isnan() & other.isnan())
    excess = (one - other).abs() - factor * (tolerance.absolute + tolerance.relative * other.abs())
    excess = torch.where(same, torch.full_like(excess, -1.0), excess.nan_to_num(nan=torch.inf, neginf=torch.inf))
    if excess.numel() == 0 or not bool((excess > 0).any()):
        return None
    cause = find_cause(one, other, relative=max(factor * tolerance.relative, 1e-9))
    return Difference(f"{name}{format_element(int(excess.argmax()), one, other)}", cause)


def format_element(flat: int, actual: Tensor, expected: Tensor) -> str:
    """Return "[0, 1] = 1.5, expected 3 (ratio 0.5)" for the element at a position of the flattened tensors."""
    index = [int(i) for i in torch.unravel_index(torch.tensor(flat, device="cpu"), actual.shape)]
    one, other = actual.flatten()[flat].item(), expected.flatten()[flat].item()
    where = f"[{', '.join(map(str, index))}]" if index else ""
    return f"{where} = {format_pair(one, other)}"


def format_pair(found: float | complex, expected: float | complex, *, digits: int = 6, text: str = "") -> str:
    """Return "1.5, expected 3 (ratio 0.5)", or more digits and the relative error if the two look alike.

    Args:
        found: what came.
        expected: what should have come.
        digits: significant digits.
        text: follows the expected number, such as how it was found.
    """
    if expected == 0 or not (cmath.isfinite(found) and cmath.isfinite(expected)):
        return f"{found:.{digits}g}, expected {expected:.{digits}g}{text}" + _ratio(found, expected)
    ratio = _ratio(found, expected)
    if ratio == " (ratio 1)" or f"{found:.{digits}g}" == f"{expected:.{digits}g}":
        digits = next((n for n in range(digits, 18) if f"{found:.{n}g}" != f"{expected:.{n}g}"), 17)
        ratio = f" (relative error {abs(found - expected) / abs(expected):.1e})"
    return f"{found:.{digits}g}, expected {expected:.{digits}g}{text}{ratio}"


def _ratio(found: float | complex, expected: float | complex) -> str:
    if isinstance(found, complex) or isinstance(expected, complex) or expected == 0:
        return ""
    return f" (ratio {found / expected + 0.0:.4g})"  # not -0


def find_untruth(fake: Sequence[Tensor], real: Sequence[Tensor], names: Sequence[str]) -> tuple[str, str] | None:
    """Return what differs first, and how; None if nothing does."""
    if len(fake) != len(real):
        return "number", f"the fake kernel returns {len(fake)} tensors, the real one {len(real)}"
    for name, said, done in zip(names, fake, real, strict=True):
        for what, one, other in _rows(said, done):
            if one != other:
                return what, f"{name}: the fake kernel gives {what} {one}, the real one gives {other}"
    return None


def _rows(said: Tensor, done: Tensor) -> list[tuple[str, object, object]]:
    """Return what is compared.

    Sizes that depend on data are symbols, which stand for any size, and have no known strides.
    """
    rows: list[tuple[str, object, object]] = [("dtype", said.dtype, done.dtype), ("device", said.device, done.device)]
    rows.append(("layout", said.layout, done.layout))
    if any(not isinstance(size, int) for size in said.shape):
        return [*rows, ("number of dimensions", said.dim(), done.dim())]
    rows.append(("shape", tuple(said.shape), tuple(done.shape)))
    if done.layout == torch.strided and said.layout == torch.strided and said.shape == done.shape:
        rows.append(("stride", _strides(said), _strides(done)))
    return rows


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides that matter: a dimension of size 1 may have any, and so may a tensor without elements."""
    if tensor.numel() == 0:
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1)
