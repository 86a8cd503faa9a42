"""Whether what a call gives is right: one truth in float64 for each call, and how far from it a result may be.

truth      the reference in float64, else the op itself in float64, on contiguous copies of the same numbers
allowed    some roundings of the dtype, what the reference itself is off by in this dtype, and how far the truth moves
           where inputs and cotangents move by half a unit in their last place; for elements in which it moves by as
           much as it is large, nothing is said
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from custom_autograd.values.random_state import kept_random_state
from custom_autograd.verification.calls.call import Call, Outcome, Plain, kept, run
from custom_autograd.verification.harness.agreement import to_double
from custom_autograd.verification.harness.comparison import format_element, widened
from custom_autograd.verification.harness.differentiable import can_have_gradient
from custom_autograd.verification.harness.sweeps import has_arithmetic
from custom_autograd.verification.harness.targets import Function, Target

ROUNDINGS: Mapping[torch.dtype, float] = {torch.float16: 4.0, torch.bfloat16: 4.0}
"""How many roundings of the largest element a result may be off by; OF_OTHERS in every other dtype."""
OF_OTHERS = 100.0

LEAST = 1e-7
"""What float64 may be off by: a kernel may keep a statistic in float32. A derivative has it more than once."""

CONDITION = 8.0
"""How often the movement of the truth, and the error of the reference in this dtype, are allowed."""

STEADY = 1e-6
"""What a truth in float64 may be off by, relative to its size, for differences of it to mean anything."""

NOISE = 8 * torch.finfo(torch.float64).eps
"""What inputs of size 1 leave in a truth in float64 in which everything cancels."""

SMALLEST = 1e-7
"""Of an input, if a derivative may have a term that is divided by it, and that cancels."""

UNSTEADY = 0.02
"""A truth that moves by more than this share of its size says nothing of an element."""

NEAR, WIDE, MOVED = range(3)
"""What is asked: the reference alone, the reference in float64, and that with inputs moved too."""

ANY_NUMBER = 1e300
"""How far off an element may be at a kink or a tie whose neighbors are all finite: anything but nan or inf."""

MOVES: Mapping[int, Sequence[int]] = {WIDE: (), MOVED: (1, -1, 2, -2)}
"""The seeds with which inputs are moved; the other way too, so that each kink is seen from both sides."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What one result should be.

    Attributes:
        value: in the widest dtype, on the CPU.
        dtype: that it should have; None if nothing says.
        allowed: how far each element may be from it; infinite where nothing can be said.
        terms: how large what is added in it may be.
        is_of_nan: whether an input has nan, and none infinity: then nan is not infinity.
        is_masked: whether an input has -inf, as masks write it, and neither nan nor +inf: then no infinity becomes nan.
    """

    value: Tensor
    dtype: torch.dtype | None
    allowed: Tensor
    terms: float = 0.0
    is_of_nan: bool = False
    is_masked: bool = False

    @property
    def is_steady(self) -> bool:
        """Return True if the value hardly moves where inputs do."""
        return bool((self.allowed <= STEADY * _size(self.value)).all())


@dataclass(frozen=True, slots=True)
class Fault:
    """A result that is wrong: a sentence, both sides of it, and why, where that is known."""

    name: str
    text: str
    found: Tensor | None = None
    expected: Tensor | None = None
    allowed: float = 0.0
    cause: str = ""


@dataclass(slots=True)
class Judge:
    """Knows what calls of one target should give.

    Args:
        target: what is verified.
        is_plain: whether a plain call of the op itself is the reference, and not its reference.
        is_fixed: whether nothing is asked nearby: at a kink, what is right is what the reference says.
        known: the truths so far.
    """

    target: Target
    is_plain: bool = False
    is_fixed: bool = False
    known: dict[object, Mapping[str, Expected] | None] = field(default_factory=dict)

    @property
    def has_reference(self) -> bool:
        """Return True if a function other than the op is the reference."""
        return self.target.visible_reference is not None and not self.is_plain

    @property
    def oracle(self) -> Function:
        """Return the reference function."""
        return (None if self.is_plain else self.target.visible_reference) or self.target.call

    @property
    def text(self) -> str:
        """Return what messages call the reference, unless a plain call is it."""
        return self.target.reference_name if self.has_reference else "the same call, contiguous and in float64"

    def takes(self, call: Call, key: object) -> bool:
        """Return False if a reference raises for the values of a call; equal keys are asked once."""
        call = replace(call, needs=frozenset())
        return not self.has_reference or self.truth(call, run, (), key, depth=NEAR) is not None

    def truth(
        self, call: Call, plain: Plain, only: Sequence[str] | None, key: object, *, depth: int = MOVED
    ) -> Mapping[str, Expected] | None:
        """Return what the call should give by name; None if the function that says so does not take it.

        Args:
            call: the call; its layouts do not matter.
            plain: computes the results.
            only: the results that cotangents are given for; None for all that have a gradient here.
            key: of the call; equal ones are computed once.
            depth: NEAR, WIDE or MOVED, each of which costs more calls than the one before, and allows no less: what is
                right by one is right.
        """
        if not self.has_reference or self._is_narrow(call):
            depth = max(depth, WIDE)
        if self.is_fixed or self._is_narrow(call):
            depth = min(depth, WIDE)
        key = (key, plain, None if only is None else tuple(only), depth)
        if key not in self.known:
            call = call.plain()
            is_near = depth == NEAR
            self.known[key] = self._near(call, plain, only) if is_near else self._computed(call, plain, only, depth)
        return self.known[key]

    def _near(self, call: Call, plain: Plain, only: Sequence[str] | None) -> dict[str, Expected] | None:
        """Return what the reference gives in the dtypes of the call, from which a result may be some roundings off."""
        found = self._run(call, plain, only)
        if found is None:
            return None
        rows = {name: (widened(y), y.dtype) for name, y in found.items()}
        return {
            name: Expected(y, dtype, torch.zeros(y.shape, device="cpu"), is_of_nan=True)
            for name, (y, dtype) in rows.items()
        }

    def _is_narrow(self, call: Call) -> bool:
        """Return True if no float64 is the reference: where a plain call does, or random numbers would be others."""
        return self.is_plain or call.state is not None

    def _computed(self, call: Call, plain: Plain, only: Sequence[str] | None, depth: int) -> dict[str, Expected] | None:
        wide = None if self._is_narrow(call) else self._run(call.map(to_double), plain, only)
        narrow = self._run(call, plain, only) if self.has_reference or wide is None else None
        if narrow is None and (self.has_reference or wide is None):
            return None
        movements = [] if wide is None else [self._run(moved(call, seed), plain, only) for seed in MOVES[depth]]
        wide = wide or narrow or {}
        values = wide if results_of(wide) else self._run(call, run, ()) or {}
        inputs = [(x, _size(widened(x))) for x in call.sample.tensors()]
        floor = _cancelled(call, values, max((size for _, size in inputs), default=0.0))
        most = max((values[name].numel() for name in results_of(values)), default=0)
        is_finite = all(bool(widened(values[name]).isfinite().all()) for name in results_of(values))
        numbers = [x for x, _ in inputs if has_arithmetic(x)]
        noise = NOISE * max((size for x, size in inputs if can_have_gradient(x)), default=0.0)
        quotients = NOISE * _growth(call) * max((1 / size for _, size in inputs if size > SMALLEST), default=0.0)
        has_nan, has_inf = (any(bool(of(x).any()) for x in numbers) for of in (torch.isnan, torch.isinf))
        is_masked = has_inf and not has_nan and not any(x.is_complex() or bool(x.isposinf().any()) for x in numbers)
        found = {}
        for name, value in wide.items():
            others = [row[name] for row in movements if row is not None and name in row]
            expected = _expected(value, None if narrow is None else narrow.get(name), others)
            expected = replace(expected, is_of_nan=has_nan and not has_inf, is_masked=is_masked)
            is_value = name in results_of(wide)
            expected = replace(expected, allowed=expected.allowed + (noise if is_value else max(noise, quotients)))
            summed = math.sqrt(max(1.0, most / max(1, value.numel())))  # rounding errors of so many terms add up
            found[name] = expected if is_value else _of_derivative(expected, floor * summed, is_finite=is_finite)
        return found

    def _run(self, call: Call, plain: Plain, only: Sequence[str] | None) -> Outcome | None:
        with contextlib.suppress(Exception), kept_random_state():  # whatever it raises, it does not take this call
            return kept(plain(self.target, self.oracle, call, only))
        return None


JUMP = 0.01
"""The share of its size by which a result is off, at least, that jumped the other way."""


def find_fault(
    found: Outcome,
    truth: Mapping[str, Expected],
    *,
    is_exact: bool,
    least: float = 0.0,
    slack: float = 1.0,
    is_rounded: bool = False,
) -> Fault | None:
    """Return the first result that is wrong.

    Args:
        found: what a call gave.
        truth: what it should give.
        is_exact: whether the dtype of the result is that of the reference.
        least: the share of its size by which a wrong result is off, at least.
        slack: how many times further off than usual it may be.
        is_rounded: whether derivatives may be but rounding, so that only nan and inf are wrong.
    """
    for name, value in found.items():
        expected = truth.get(name)
        if expected is not None and is_rounded and name.startswith(DERIVATIVES):
            expected = replace(expected, allowed=expected.allowed + ANY_NUMBER)
        if expected is not None:
            fault = _metadata(name, value, expected, is_exact=is_exact) or _value(name, value, expected, least, slack)
            if fault is not None:
                return fault
    return None


def moved(call: Call, seed: int) -> Call:
    """Return the call in float64, each number moved by half a unit in the last place of its own dtype.

    With -seed each is moved the other way.
    """
    generator, way = torch.Generator().manual_seed(abs(seed)), math.copysign(1.0, seed)

    def move(tensor: Tensor) -> Tensor:
        if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.layout != torch.strided:
            return to_double(tensor.detach())
        wide = to_double(tensor.detach())
        eps, size = max(torch.finfo(tensor.dtype).eps, NOISE), _size(wide)  # half a unit would vanish in float64
        signs = (torch.randint(0, 2, wide.shape, generator=generator, device="cpu") * 2.0 - 1).to(
            wide.device, torch.float64
        ) * way
        return wide * (1 + signs * eps / 2) + signs.flip(0 if wide.dim() else ()) * ((size or 1.0) * eps / 64)

    def moved_cotangent(u: Tensor) -> Tensor:
        return u * (1 + (torch.rand(u.shape, generator=generator, device="cpu") - 0.5).to(u.device) * EPS)

    return call.map(move).with_cotangent(moved_cotangent)


EPS = 2.0**-24
"""Of float32: cotangents are numbers that every dtype holds, but what a kernel makes of them is rounded."""


def _expected(wide: Tensor, narrow: Tensor | None, moved: Sequence[Tensor | None]) -> Expected:
    value = widened(wide)
    others = [widened(row) for row in moved if row is not None and row.shape == wide.shape]
    same = widened(narrow) if narrow is not None and narrow.shape == wide.shape else None
    is_steady = value.isfinite()
    for other in [*others, *([] if same is None else [same])]:
        is_steady = is_steady & other.isfinite()
    zeros = torch.zeros(value.shape, dtype=torch.float64, device="cpu")
    movement = torch.stack([zeros, *((row - value).abs() for row in others)]).amax(0)
    size = float(value[is_steady].abs().max()) if bool(is_steady.any()) else 0.0
    largest = float(movement[is_steady].max()) if bool(is_steady.any()) else 0.0
    error = float((same - value).abs()[is_steady].max()) if same is not None and bool(is_steady.any()) else 0.0
    allowed = zeros + CONDITION * max(largest, error)
    if largest > UNSTEADY * size:  # a few elements at a kink or a tie, or all of them
        typical = (CONDITION * movement).clamp(min=CONDITION * max(_typical(movement), error))
        allowed = torch.where(movement > UNSTEADY * size, ANY_NUMBER, typical)
    agreed = _agreed(value, [*others, *([] if same is None else [same])])
    allowed = torch.where(agreed, allowed, torch.inf)
    return Expected(value, None if narrow is None else narrow.dtype, allowed)


def results_of(outcome: Outcome) -> list[str]:
    """Return the names of an outcome that are outputs and written inputs, and no derivative."""
    return [name for name in outcome if not name.startswith(DERIVATIVES)]


def is_of(name: str, argument: str) -> bool:
    """Return True if a derivative is that of an argument, or of a tensor in it: `'x'`, `'x[0]'` or `'x.weight'`."""
    return name.startswith(argument) and name[len(argument)] in "'[."


DERIVATIVES = ("gradient of ", "tangent of ", "second ")


def _cancelled(call: Call, wide: Outcome, inputs: float) -> float:
    """Return the size of terms that may cancel in a derivative: cotangent x output x number, x or / input."""
    outputs = max((_size(widened(wide[name])) for name in results_of(wide)), default=0.0)
    numbers = [abs(value) for value in (*call.sample.args, *call.sample.kwargs.values()) if type(value) is float]
    return (
        8.0
        * _growth(call)
        * outputs
        * max(inputs, 1 / inputs if inputs else 0.0)
        * max([1.0, *(number for number in numbers if math.isfinite(number))])
    )


def _growth(call: Call) -> float:
    """Return how many times larger than usual cotangents are; 1 where they are smaller or absent."""
    u = None if call.cotangent is None else call.cotangent(torch.ones(1, device="cpu"), 0)
    return 1.0 if u is None else max(1.0, _size(widened(u)))


def _size(tensor: Tensor) -> float:
    """Return the largest magnitude of the finite elements."""
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    if math.isfinite(largest):
        return largest
    finite = tensor.abs()[tensor.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def _of_derivative(expected: Expected, terms: float, *, is_finite: bool) -> Expected:
    """Return what is said of a derivative: nothing where it or a value is not finite, and less where terms cancel."""
    if not is_finite:
        return replace(expected, allowed=torch.full_like(expected.allowed, torch.inf))
    allowed = torch.where(expected.value.isfinite(), expected.allowed, torch.inf)
    return replace(expected, allowed=allowed, terms=terms)


def is_finite_part_same(found: Tensor, expected: Tensor) -> bool:
    """Return True if a result differs only where none is finite: 0 * inf is nan, unless an op skips what it masks."""
    finite = found.where(expected.isfinite(), expected)
    return torch.allclose(finite, expected, 0.01, 0.01 * _size(expected), equal_nan=True)


def _typical(movement: Tensor) -> float:
    finite = movement[movement.isfinite()]
    return float(finite.median()) if finite.numel() else 0.0


def _agreed(value: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Return where all know whether an element is finite."""
    agreed = torch.ones(value.shape, dtype=torch.bool, device="cpu")
    for other in others:
        agreed &= other.isfinite() == value.isfinite()
    return agreed


def _metadata(name: str, found: Tensor, expected: Expected, *, is_exact: bool) -> Fault | None:
    if found.shape != expected.value.shape:
        text = f"{name} has shape {tuple(found.shape)}, expected {tuple(expected.value.shape)}"
        return Fault(name, text)
    if is_exact and expected.dtype is not None and found.dtype != expected.dtype:
        return Fault(name, f"{name} has dtype {found.dtype}, expected {expected.dtype}")
    return None


def _value(name: str, found: Tensor, expected: Expected, least: float, slack: float) -> Fault | None:
    """Return the worst element that is further off than allowed; infinity may be nan where there was infinity."""
    one, other = widened(found), expected.value
    if one.is_complex() != other.is_complex():
        one, other = one.to(torch.complex128), other.to(torch.complex128)
    rounding, least = max(least, _rounding(name, found.dtype)), _least(found.dtype, expected.terms)
    off, bound = (one - other).abs(), rounding * _size(other) + least
    if bool((off <= bound).all()):  # what is allowed beyond it takes longer to say
        return None
    same = (one == other) | (one.isnan() & other.isnan())
    may_differ = ~one.isfinite() & ~other.isfinite() & (not expected.is_of_nan)
    same |= may_differ & ~other.isinf() if expected.is_masked else may_differ
    limits = slack * (expected.allowed + bound)
    excess = torch.where(same, -1.0, (off - limits).nan_to_num(nan=torch.inf, posinf=torch.inf))
    excess = torch.where(expected.allowed.isinf(), -1.0, excess)
    if not excess.numel() or not bool((excess > 0).any()):
        return None
    flat = int(excess.argmax())
    limit = float(limits.flatten()[flat]) if bool(off.flatten()[flat].isfinite()) else 0.0
    return Fault(name, f"{name}{format_element(flat, one, other)}", one, other, limit)


def _rounding(name: str, dtype: torch.dtype) -> float:
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    least = 10 * LEAST if name.startswith(DERIVATIVES) else LEAST
    return max(ROUNDINGS.get(dtype, OF_OTHERS) * torch.finfo(dtype).eps, least)


def _least(dtype: torch.dtype, terms: float) -> float:
    """Return a few steps between the smallest numbers of a dtype, and what terms of this size leave as they cancel."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    return torch.finfo(dtype).eps * (8 * torch.finfo(dtype).smallest_normal + terms)
