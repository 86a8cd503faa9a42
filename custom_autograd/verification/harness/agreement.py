"""Whether an op agrees with another function that computes the same: a reference, or another kernel.

Two right ways to compute the same thing round differently, and more so where terms cancel. How much is measured: the
other function is asked once in the sample's dtype and once in float64, and what lies between its two answers is what
rounding costs here.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from custom_autograd.core.errors import KernelUnavailable, ShapeError
from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import RandomState
from custom_autograd.verification.harness.base import PASSED, Finding, find_refusal, first_line, skipped
from custom_autograd.verification.harness.comparison import Difference, find_difference, widened
from custom_autograd.verification.harness.differentiable import TensorFunction, copies, signed_like, vector_jacobian
from custom_autograd.verification.harness.dispatching import completing
from custom_autograd.verification.harness.domain import within_domain
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.result_names import result_names
from custom_autograd.verification.harness.sweeps import is_index
from custom_autograd.verification.harness.targets import Function, Target, call_on
from custom_autograd.verification.harness.variants import long_sizes, sizes, tile_sizes, without_dimensions
from custom_autograd.verification.report.headline import NO_REFERENCE

ROUNDING = 8.0
"""How often the other function's own rounding the op's may be: another order of summation costs a few times as much."""

CRASHES = (LookupError, ArithmeticError, AttributeError, NameError, TypeError, AssertionError, SystemError)
"""What a kernel raises that meets a case it was not written for. A ValueError or a RuntimeError is a decision."""

TO_SAY = (
    ", which the default kernel computes; let the kernel that refuses say so with when=, and the next kernel runs"
    " (of a layout: with layouts=, and it is copied)"
)


def why_no_reference(target: Target) -> str | None:
    """Return why a target has no reference to be compared with, or None if it has one that is not its only kernel."""
    if target.reference is None:
        return NO_REFERENCE
    if set(target.kernels.values()) <= {target.reference}:
        return "the reference is the only kernel"
    return None


def compare_values(
    target: Target, other: Function, sample: Sample, label: str, name: str, *, is_scaled: bool = False
) -> Finding:
    """Compare the target's values on one variant of a sample with those of another function.

    Args:
        target: what is checked.
        other: what is right.
        sample: the arguments.
        label: what to call the variant; "as given" is expected to work.
        name: what to call the other function.
        is_scaled: whether the numbers are so small that absolute tolerances would hide anything.

    Returns:
        Skipped where a variant is refused.
    """
    with torch.no_grad():
        state = RandomState.current()
        try:
            expected = values_of(target, other, sample)
        except Exception as error:
            if label == "as given":
                raise
            return skipped(f"{label}: {name} refuses it ({first_line(error)})")
        state.restore()
        try:
            found = values_of(target, target.full, sample)
        except Exception as error:  # noqa: BLE001  # told apart there, and raised again where it is not a variant
            count = len(expected) - len(target.written_positions(sample))
            return _raised(error, target, sample, label, name, count)
        difference = find_difference(
            found, expected, names=result_names(target, sample, len(expected)), is_scaled=is_scaled
        )
        if difference is not None:
            state.restore()
            difference = _beyond_rounding(target, other, sample, found, expected, difference)
    return PASSED if difference is None else difference.failed(f"{label}: {difference}, by {name}")


def values_of(target: Target, function: Function, sample: Sample) -> tuple[Tensor, ...]:
    """Return what a function returns, then the inputs the target writes to; only those are copied, the others stay."""
    written = target.written_positions(sample)
    tensors = [_copied(x) if position in written else x.detach() for position, x in enumerate(sample.tensors())]
    outputs = call_on(function, sample.with_tensors(tensors))
    return tuple(output.detach() for output in outputs) + tuple(tensors[position] for position in sorted(written))


def accepted_sizes(target: Target, sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield the variants of a sample with other sizes that the reference takes; without one, none where integers point.

    A kernel that is given an index beyond its tensor may write anywhere, so only a reference is called first.
    """
    if target.reference is None:
        if all(tensor.is_floating_point() or tensor.is_complex() for tensor in sample.tensors()):
            yield from within_domain(target, sample, sizes(sample))
        return
    for label, variant in within_domain(target, sample, sizes(sample, target.arguments)):
        if _find_shapes(target, target.reference, variant) is not None:
            yield label, variant
    given = {tuple(tensor.shape) for tensor in sample.tensors()}
    is_whole = all(tensor.numel() and tensor.dim() and not is_index(tensor) for tensor in sample.tensors())
    if is_whole and len(given) == 1 and given == _find_shapes(target, target.reference, sample):
        yield "no dimensions", without_dimensions(sample)  # an element-wise op has no dimensions


def accepted_tile_sizes(target: Target, sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield the variants of a sample with sizes that fill vectors and blocks, as far as the reference takes them."""
    for label, variant in within_domain(target, sample, tile_sizes(sample)):
        if takes_as_reference(target, variant):
            yield label, variant


def takes_as_reference(target: Target, sample: Sample) -> bool:
    """Return True if the reference takes a call; True where there is none to ask."""
    return target.reference is None or _find_shapes(target, target.reference, sample) is not None


def accepted_long_sizes(target: Target, sample: Sample, length: int) -> Iterator[tuple[str, Sample]]:
    """Yield the variants of a sample with one size so long that the reference takes, as `accepted_sizes` does."""
    reference = target.reference
    if reference is None and not all(x.is_floating_point() or x.is_complex() for x in sample.tensors()):
        return
    for label, variant in within_domain(target, sample, long_sizes(sample, length)):
        if takes_as_reference(target, variant):
            yield label, variant


def _find_shapes(target: Target, reference: Function, sample: Sample) -> set[tuple[int, ...]] | None:
    """Return the shapes of what a function returns; None if it refuses the sample."""
    with torch.no_grad(), contextlib.suppress(Exception):
        return {tuple(tensor.shape) for tensor in values_of(target, reference, sample)}
    return None


def find_gradient_difference(
    function: TensorFunction, other: TensorFunction, *, is_scaled: bool = False
) -> Difference | None:
    """Return where the gradients of two functions of the same tensors differ, for cotangents of both signs, or None."""
    cotangents = signed_like(function(*function.inputs))
    expected = vector_jacobian(other, other.inputs, copies(cotangents))
    found = vector_jacobian(function, function.inputs, copies(cotangents))
    names = [f"gradient of '{name}'" for name in function.names]
    return find_difference(found, expected, names=names, factor=10.0, is_scaled=is_scaled)


def _copied(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides, gaps included: the layout is part of what is looked at."""
    if tensor.layout != torch.strided or 0 in tensor.stride():
        return tensor.detach().clone()
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def to_double(tensor: Tensor) -> Tensor:
    """Return the tensor with its numbers in float64 or complex128; integers and bools stay."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def refused(error: Exception, target: Target, sample: Sample, label: str) -> Finding:
    """Return a skip for a variant that the op does not take.

    With advice where only a kernel that is not the default refuses it.
    """
    reason = f"{label}: the op refuses it ({first_line(error)})"
    if not only_a_kernel_refuses(target, sample):
        return skipped(reason)
    return skipped(f"{reason}{TO_SAY}", advice=f"{reason}{TO_SAY}")


def only_a_kernel_refuses(target: Target, sample: Sample) -> bool:
    """Return True if the op raises where the default kernel, which is not its only one, gives a result."""
    if "" not in target.kernels or len(target.kernels) < 2:
        return False
    default = completing(target.complete, target.kernels[""])
    return _find_shapes(target, target.full, sample) is None and _find_shapes(target, default, sample) is not None


def _raised(error: Exception, target: Target, sample: Sample, label: str, name: str, count: int) -> Finding:
    """Return a skip for a variant that only the op refuses; a failure for empty tensors, which PyTorch's ops take."""
    if label == "as given":
        raise error
    if isinstance(error, (KernelUnavailable, ShapeError)):  # a line of shapes refuses what no kernel is to take
        return skipped(f"{label}: {first_line(error)}")
    declared = _declared_outputs(target)
    if declared is not None and declared != count:
        return skipped(f"{label}: {name} returns {count} outputs there, and the op declares {declared}")
    is_empty = any(tensor.numel() == 0 for tensor in sample.tensors())
    if find_refusal(error) is None and (is_empty or isinstance(error, CRASHES)):
        text = f"{label}: the op raises {first_line(error)}, where {name} gives a result"
        return Difference(text, "a kernel that meets a case it was not written for").failed(text)
    return refused(error, target, sample, label)


def _declared_outputs(target: Target) -> int | None:
    """Return how many tensors an op declares to return; None if that depends on the call, or is not known."""
    record = record_of(target)
    if record is None:
        return None
    outputs = [output for output in record.declaration.schema.outputs if output.alias_of is None]
    return len(outputs) if all(output.type == "Tensor" for output in outputs) else None


def _beyond_rounding(
    target: Target,
    other: Function,
    sample: Sample,
    found: tuple[Tensor, ...],
    expected: tuple[Tensor, ...],
    difference: Difference,
) -> Difference | None:
    """Return the difference, unless the other function itself is as far from its answer in float64."""
    try:
        wide = values_of(target, other, sample.map(to_double))
    except Exception:  # noqa: BLE001  # a function that does not take float64 has no wider answer
        return difference
    if len(wide) != len(expected):
        return difference
    for one, same, best in zip(found, expected, wide, strict=True):
        if one.shape != best.shape or one.dtype != same.dtype or not _is_within(one, same, best):
            return difference
    return None


def _is_within(found: Tensor, expected: Tensor, best: Tensor) -> bool:
    if not (found.is_floating_point() or found.is_complex()):
        return torch.equal(found, expected)
    one, same, true = widened(found), widened(expected), widened(best)
    finite = true.isfinite() & same.isfinite()
    if not torch.equal(one.isfinite() | ~finite, torch.ones_like(finite)):
        return False
    cost = (same - true).abs()[finite]
    largest = float(cost.max()) if cost.numel() else 0.0
    return bool(((one - true).abs()[finite] <= ROUNDING * largest).all())
