"""In float32, float16 and bfloat16, values and gradients are as near to float64 as the dtype allows, for long sums too.

The truth is the op itself on the same numbers, which other checks hold right, in float64, or in float32 if it does not
take that; where nothing has a gradient, the reference, if there is one. What a dtype allows follows from its rounding,
and from how far the truth moves where the inputs move by half a unit in their last place.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientError
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.calls.call import (
    DRAWN,
    Call,
    Outcome,
    begin,
    differentiate,
    draws_gradients,
)
from custom_autograd.verification.calls.call_arguments import value_of
from custom_autograd.verification.calls.judge import CONDITION, moved
from custom_autograd.verification.harness.agreement import (
    long_sizes,
    refused,
    to_double,
    to_single,
    values_of,
    within_domain,
)
from custom_autograd.verification.harness.base import (
    Check,
    Finding,
    NothingToCheckError,
    failed,
    find_refusal,
    first_line,
    measured,
    skipped,
)
from custom_autograd.verification.harness.comparison import widened
from custom_autograd.verification.harness.differentiable import able_positions, can_have_gradient
from custom_autograd.verification.harness.interpreted import find_interpreter
from custom_autograd.verification.harness.pace import Pace
from custom_autograd.verification.harness.settings import is_random
from custom_autograd.verification.harness.targets import Target

LONG = 4099
"""Terms of a sum: bfloat16 counts to 256 and then stays there."""

BUDGETS = {torch.float32: 2e-4, torch.float16: 1.2e-2, torch.bfloat16: 6e-2}
"""Largest error relative to the largest element: a dozen roundings in half precision, some hundred in float32."""

SHARE = 0.02
"""Of the elements, that may be off by more: near a tie, rounding sends the gradient elsewhere."""

LONGEST = 2.0  # s of CPU time; of one sample, after which longer ones are left out

CALLS = 8
"""How many forwards and backwards one dtype takes, at least."""

WIDEST = 2**20
"""Elements in the results of a variant: a size that makes the results long makes no sum long."""

FLOOR = 1e-2
"""A result this much smaller than the inputs is what cancelled: rounding of the inputs is then most of it."""

CAUSE = "a rule that returns the dtype it computes in, and not that of the input"


class LowPrecision(Check):
    """Values and gradients for cotangents of ones and of both signs, for the sample and with one size made long."""

    name = "low_precision"
    code = "F10"
    group = "derivatives"
    needs = ("gradcheck",)
    most_samples = 1
    purpose = "values and gradients in float32, float16 and bfloat16 are within a budget of float64"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per dtype and size."""
        is_seeded = any(
            "seed" in row.name and type(value_of(target, sample, row.name)) is int for row in target.arguments
        )
        if is_seeded or is_random(target, sample):
            raise NothingToCheckError("it draws other random numbers in every dtype")
        if draws_gradients(target, sample):
            raise NothingToCheckError(DRAWN)
        pace = Pace(target, sample)
        start = time.process_time()
        for label, variant in _variants(target, sample):
            if time.process_time() - start > LONGEST:
                yield skipped(f"{label}: left out, because smaller ones took {LONGEST:g} s")
                continue
            if label and (reason := pace.why_not(variant)):
                yield skipped(f"{label}: {reason}")
                continue
            begun = time.process_time()
            if label and _is_wide(target, variant):
                yield skipped(f"{label}: left out, because its results have more than {WIDEST} elements")
                continue
            spent = time.process_time() - begun
            if spent > LONGEST / CALLS:
                yield skipped(f"{label}: left out, because one call took {spent:.1f} s")
                continue
            # Of a long sum, bfloat16 first: there may be no time for all.
            for dtype, budget in reversed(BUDGETS.items()) if label else BUDGETS.items():
                if label and time.process_time() - start > LONGEST:
                    yield skipped(f"{label} in {dtype}: left out, because other dtypes took {LONGEST:g} s")
                    break
                yield from _check(target, variant, dtype, budget, label)


def _results(target: Target, call: Call, *, is_truth: bool = False) -> Outcome:
    """Return outputs and gradients; where nothing has a gradient, floating results and what is written to.

    Raises:
        NothingToCheckError: there is neither.
    """
    try:
        return differentiate(target, call)
    except Exception as error:
        if find_refusal(error) is None and not isinstance(error, NothingToCheckError):
            raise
    function = target.reference if is_truth and target.reference is not None else target.full
    with torch.no_grad():
        found = begin(target, function, replace(call, needs=frozenset())).detached()
    rows = {name: y for name, y in found.items() if can_have_gradient(y)}
    if not rows:
        raise NothingToCheckError("no result is floating or complex")
    return rows


def _variants(target: Target, sample: Sample) -> Iterator[tuple[str, Sample]]:
    yield "", sample
    # What an integer tensor points at stays as large as it is.
    if all(tensor.is_floating_point() or tensor.is_complex() for tensor in sample.tensors()):
        yield from within_domain(target, sample, long_sizes(sample, LONG))


def _is_wide(target: Target, sample: Sample) -> bool:
    """Return True if the results are larger than a long sum makes them; not where the op refuses the sample."""
    with torch.no_grad(), contextlib.suppress(Exception):
        return sum(tensor.numel() for tensor in values_of(target, target.call, sample)) > WIDEST
    return False


def _check(target: Target, sample: Sample, dtype: torch.dtype, budget: float, label: str) -> Iterator[Finding]:
    low = sample.map(lambda x: x.detach().to(dtype).requires_grad_(x.requires_grad) if x.is_floating_point() else x)
    context = f"{str(dtype).removeprefix('torch.')}{', ' + label if label else ''}"
    scales: Mapping[str, float] = {}
    plain = Call(low, frozenset(able_positions(target, low)))
    for call in (plain, plain.with_cotangent(torch.ones_like)):  # ones are what sum() sends
        try:
            found = _results(target, call)
        except NothingToCheckError:
            return
        except Exception as error:  # noqa: BLE001 - an op may refuse a dtype or a size in any words
            is_wrong = isinstance(error, GradientError) and find_refusal(error) is None  # what a rule returned
            is_ours = is_wrong and _truth(target, call) is not None  # it is right in float64
            text = f"{context}: {first_line(error)}"
            yield failed(text, cause=CAUSE) if is_ours else refused(error, target, low, context)
            return
        truth = _truth(target, call)
        if truth is None:
            return
        scales = scales or {name: _size(tensor) for name, tensor in truth.items()}
        least = FLOOR * max(map(_size, low.tensors()), default=0.0)
        at_least = {name: max(scale, least) for name, scale in scales.items()}
        compare = partial(_compare, found, truth, at_least, dtype, budget, context)
        finding = compare([])
        if finding.status == "failed":  # what the truth moves by takes two more of it, and only allows more
            others = [_truth(target, moved(call, seed)) for seed in (1, 2)]
            known = [row for row in others if row is not None and _shapes(row) == _shapes(truth)]
            if len(known) < len(others):
                return
            finding = compare(known)
        is_odd = finding.status == "failed" and dtype == torch.bfloat16
        interpreter = find_interpreter(partial(_results, target, call)) if is_odd else None
        if interpreter is not None:
            finding = skipped(f"{context}: {interpreter}, which does not calculate in bfloat16")
        yield finding
        if finding.status == "failed":
            return


def _size(tensor: Tensor) -> float:
    return float(widened(tensor).abs().max()) if tensor.numel() else 0.0


def _shapes(outcome: Outcome) -> list[torch.Size]:
    return [tensor.shape for tensor in outcome.values()]


def _truth(target: Target, call: Call) -> Outcome | None:
    """Return outputs and gradients of a call in float64, or in float32; None if the op takes neither."""
    for wide in (call.map(to_double), call.map(to_single)):
        with contextlib.suppress(Exception):  # an op may refuse a dtype in any words
            return _results(target, wide, is_truth=True)
    return None


def _compare(
    found: Outcome,
    truth: Outcome,
    scales: Mapping[str, float],
    dtype: torch.dtype,
    budget: float,
    context: str,
    others: Sequence[Outcome],
) -> Finding:
    worst, wide = 0.0, str(truth[next(iter(truth))].dtype).removeprefix("torch.")
    for name, low in found.items():
        one, other = widened(low), widened(truth[name])
        scale = max(_size(other), scales[name])  # for ones, what is added may cancel to nothing
        if one.shape != other.shape or not other.numel() or not 0 < scale < torch.finfo(dtype).max / 2:
            continue
        errors = (one - other).abs().nan_to_num(nan=torch.inf) / scale
        error = float(errors.max())
        movement = max((float((widened(row[name]) - other).abs().max()) for row in others), default=0.0) / scale
        worst = max(worst, error)
        share = float((errors > budget + CONDITION * movement).double().mean())
        if share > SHARE:
            return failed(
                f"{context}: {name} has a relative error of {error:.2g} against {wide}, more than {budget:.2g}",
                cause="a sum is accumulated in low precision; accumulate in float32",
            )
    return measured(**{f"error, {context}": worst})
