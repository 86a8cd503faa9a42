"""Values and gradients do not depend on where the numbers of an input lie in memory."""

from collections.abc import Iterable

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import RandomState
from custom_autograd.verification.harness.agreement import values_of
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    find_refusal,
    first_line,
    skipped,
)
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.differentiable import gradients_of
from custom_autograd.verification.harness.dispatching import has_generator
from custom_autograd.verification.harness.result_names import result_names
from custom_autograd.verification.harness.sweeps import layouts
from custom_autograd.verification.harness.targets import Target


class Layouts(Check):
    """Transposed, sliced, offset, expanded, channels-last, conjugate and negative views against a contiguous copy."""

    name = "layouts"
    code = "F07"
    group = "layout"
    is_quick = True
    purpose = "values and gradients are the same in every memory layout of the inputs"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per layout; no reference is needed, since the op is compared with itself."""
        for label, variant in layouts(sample, written=target.written_positions(sample)):
            if label != "as given":
                yield from _compare(target, variant, label)


def _compare(target: Target, variant: Sample, label: str) -> Iterable[Finding]:
    plain = variant.map(_contiguous)
    state = RandomState.current()
    with torch.no_grad():
        try:
            expected = values_of(target, target.full, plain)
            is_random = has_generator(variant) or state.has_moved()
        except Exception:  # noqa: BLE001 - numbers that the op was not made for: expanding repeats some
            return
        state.restore()
        try:
            found = values_of(target, target.full, variant)
        except Exception as error:  # noqa: BLE001 - whatever it raises, it gives no wrong number
            yield skipped(f"{label}: the op refuses it ({first_line(error)})")
            return
    cause = "strides, an offset or a view's lazy conjugation are ignored"
    difference = find_difference(found, expected, names=result_names(target, variant, len(expected)))
    if difference is not None and is_random and label in IN_ORDER_OF_MEMORY:
        yield skipped(f"{label}: it draws random numbers, which torch fills in the order of memory")
        return
    if difference is not None:
        yield failed(f"{label} inputs: {difference} for the same numbers, contiguous", cause=cause)
        return
    yield PASSED
    try:
        state.restore()
        names, expected_grads = gradients_of(target, plain)
    except (NothingToCheckError, RuntimeError, TypeError):  # what has no gradient here has none in any layout
        return
    state.restore()
    try:
        _, grads = gradients_of(target, variant)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        refusal = find_refusal(error)
        text = f"{label} inputs: the backward raises {first_line(error)}; it does not for the same numbers, contiguous"
        yield failed(text, cause=cause) if refusal is None else skipped(f"{label}: {refusal}")
        return
    difference = find_difference(grads, expected_grads, names=names)
    message = f"{label} inputs: {difference} for the same numbers, contiguous"
    yield PASSED if difference is None else failed(message, cause=cause)


IN_ORDER_OF_MEMORY = ("transposed", "channels-last")
"""Layouts that results keep, as torch.rand_like does: equal numbers then come to other elements."""


def _contiguous(tensor: Tensor) -> Tensor:
    if tensor.layout != torch.strided:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
