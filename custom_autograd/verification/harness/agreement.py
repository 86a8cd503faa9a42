"""What an op takes and gives next to its reference: values, sizes, and what a refusal of it means."""

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.base import Finding, first_line, skipped
from custom_autograd.verification.harness.dispatching import completing
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.sweeps import is_index
from custom_autograd.verification.harness.targets import Function, Target, call_on
from custom_autograd.verification.harness.variants import long_sizes, sizes, within_domain, without_dimensions
from custom_autograd.verification.report.results import NO_REFERENCE

CRASHES = (LookupError, ArithmeticError, AttributeError, NameError, TypeError, AssertionError, SystemError)
"""What a kernel raises that meets a case it was not written for. A ValueError or a RuntimeError is a decision."""

UNMET = "a kernel that meets a case it was not written for"

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


def values_of(target: Target, function: Function, sample: Sample) -> tuple[Tensor, ...]:
    """Return what a function returns, then the inputs the target writes to; only those are copied, the others stay."""
    written = target.written_positions(sample)
    tensors = [copied(x) if position in written else x.detach() for position, x in enumerate(sample.tensors())]
    outputs = call_on(function, sample.with_tensors(tensors))
    return tuple(output.detach() for output in outputs) + tuple(tensors[position] for position in sorted(written))


def accepted_sizes(target: Target, sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield the variants of a sample with other sizes that the reference takes; without one, none where integers point.

    A kernel that is given an index beyond its tensor may write anywhere, so only a reference is called first.
    """
    arguments = () if target.reference is None else target.arguments  # it shows which integers may follow a size
    yield from _accepted(target, sample, sizes(sample, arguments))
    if is_elementwise(target, sample):
        yield "no dimensions", without_dimensions(sample)


def accepted_long_sizes(target: Target, sample: Sample, length: int) -> Iterator[tuple[str, Sample]]:
    """Yield the variants of a sample with one size so long that the reference takes, as `accepted_sizes` does."""
    return _accepted(target, sample, long_sizes(sample, length))


def _accepted(target: Target, sample: Sample, variants: Iterable[tuple[str, Sample]]) -> Iterator[tuple[str, Sample]]:
    if target.reference is not None or all(x.is_floating_point() or x.is_complex() for x in sample.tensors()):
        found = within_domain(target, sample, variants)
        yield from (row for row in found if takes_as_reference(target, row[1]))


def takes_as_reference(target: Target, sample: Sample) -> bool:
    """Return True if the reference takes a call; True where there is none to ask."""
    return target.reference is None or find_shapes(target, target.reference, sample) is not None


def is_elementwise(target: Target, sample: Sample) -> bool:
    """Return True if all tensors, and what the reference returns, have one shape, with dimensions and elements."""
    shapes = {tuple(tensor.shape) for tensor in sample.tensors()}
    is_whole = all(x.numel() and x.dim() and not is_index(x) for x in sample.tensors())
    if target.reference is None or not is_whole or len(shapes) != 1:
        return False
    return shapes == find_shapes(target, target.reference, sample)


def find_shapes(target: Target, reference: Function, sample: Sample) -> set[tuple[int, ...]] | None:
    """Return the shapes of what a function returns; None if it refuses the sample."""
    with torch.no_grad(), contextlib.suppress(Exception):
        return {tuple(tensor.shape) for tensor in values_of(target, reference, sample)}
    return None


def copied(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides, gaps included: the layout is part of what is looked at."""
    if tensor.layout != torch.strided or 0 in tensor.stride() or type(tensor) is not Tensor:
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
    return find_shapes(target, target.full, sample) is None and find_shapes(target, default, sample) is not None


def declared_outputs(target: Target) -> int | None:
    """Return how many tensors an op declares to return; None if that depends on the call, or is not known."""
    record = record_of(target)
    if record is None:
        return None
    outputs = [output for output in record.declaration.schema.outputs if output.alias_of is None]
    return len(outputs) if all(output.type == "Tensor" for output in outputs) else None
