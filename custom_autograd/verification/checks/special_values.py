"""NaN and infinity propagate as through the reference: none is swallowed, and none appears where there was none."""

from collections.abc import Iterable

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import RandomState
from custom_autograd.verification.harness.agreement import values_of, why_no_reference
from custom_autograd.verification.harness.base import PASSED, Check, Finding, failed, first_line, skipped
from custom_autograd.verification.harness.result_names import result_names
from custom_autograd.verification.harness.targets import Target

SPECIAL = (float("nan"), float("inf"), float("-inf"))


class SpecialValues(Check):
    """One element of one input at a time is nan, inf or -inf."""

    name = "special_values"
    code = "F09"
    group = "values"
    is_quick = True
    purpose = "nan and inf propagate as in the reference"

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless there is a reference, and something other than it."""
        return why_no_reference(target)

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per input and value."""
        for position, leaf in enumerate(sample.leaves()):
            if leaf.tensor.is_floating_point() and leaf.tensor.numel() and leaf.tensor.layout == torch.strided:
                for value in SPECIAL:
                    yield _check(target, _with(sample, position, value), target.name_of(leaf), value)


def _with(sample: Sample, position: int, value: float) -> Sample:
    """Return the sample with one element in the middle of one tensor replaced."""
    tensors = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in sample.tensors()]
    tensors[position].view(-1)[tensors[position].numel() // 2] = value
    return sample.with_tensors(tensors)


def _check(target: Target, sample: Sample, name: str, value: float) -> Finding:
    assert target.reference is not None
    with torch.no_grad():
        state = RandomState.current()
        try:
            expected = values_of(target, target.reference, sample)
            state.restore()
            found = values_of(target, target.full, sample)
        except (RuntimeError, ValueError, IndexError) as error:
            return skipped(f"{value} in '{name}': it is refused ({first_line(error)})")
    for output, one, other in zip(result_names(target, sample, len(expected)), found, expected, strict=True):
        difference = _find_difference(one, other, is_nan=value != value)
        if difference is not None:
            return failed(f"with {value} in '{name}', {output} {difference}", cause=_cause(one, other))
    return PASSED


def _find_difference(found: Tensor, expected: Tensor, *, is_nan: bool) -> str | None:
    """Require nan where nan went in, and anything that is not finite where inf went in."""
    if not (found.is_floating_point() and expected.is_floating_point()) or found.shape != expected.shape:
        return None
    one, other = (found.isnan(), expected.isnan()) if is_nan else (~found.isfinite(), ~expected.isfinite())
    if torch.equal(one, other):
        return None
    index = [int(i) for i in (one != other).nonzero()[0]]
    subscript = f"[{', '.join(map(str, index))}]" if index else ""
    numbers = found[tuple(index)].item(), expected[tuple(index)].item()
    return f"has {numbers[0]:.6g} at {subscript or 'its only element'}, the reference has {numbers[1]:.6g}"


def _cause(found: Tensor, expected: Tensor) -> str:
    lost = bool((found.isfinite() & ~expected.isfinite()).any())
    return "a comparison or a clamp swallows it" if lost else "it spreads to elements that do not depend on it"
