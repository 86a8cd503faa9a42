"""The fake kernel agrees with the real one: metadata of outputs, in every layout, size and dtype."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.calls.fake_tensors import fake_outputs
from custom_autograd.verification.harness.agreement import accepted_long_sizes, accepted_sizes, takes_as_reference
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    failed,
    find_refusal,
    first_line,
    root_cause,
    skipped,
)
from custom_autograd.verification.harness.comparison import find_untruth
from custom_autograd.verification.harness.records import has_derived_fake, output_names
from custom_autograd.verification.harness.sweeps import layouts
from custom_autograd.verification.harness.targets import Target, call_on
from custom_autograd.verification.harness.variants import VARIED, floating, integers, kinds

LONG = 1031
"""A size that no sample has: a prime above a thousand."""


class Fake(Check):
    """The fake kernel's results, compared with the real kernel's."""

    name = "fake"
    code = "C01"
    group = "metadata"
    is_quick = True
    purpose = "fake outputs have the shape, stride, dtype and device of the real ones, in every layout, size and dtype"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield one finding per layout, one per size, and one per dtype."""
        written = target.written_positions(sample)
        others = accepted_sizes(target, sample), accepted_long_sizes(target, sample, LONG)
        for label, variant in itertools.chain(layouts(sample, written=written), *others):
            finding = _check_variant(target, variant, label)
            if finding.status != "skipped" or not label.startswith(VARIED):
                yield finding
            if label == "as given" and finding.status == "skipped":
                return
        yield from _check_dtypes(target, sample)


def _check_dtypes(target: Target, sample: Sample) -> Iterator[Finding]:
    """Check every floating dtype that the op takes; then other kinds of numbers, which were not declared.

    Of those a mistake is a failure where the op answers in the dtype that it is given; else it is advice.
    """
    declared = list(floating(sample))
    if target.reference is not None:
        declared += integers(sample)  # what points into memory is only read as the reference allows
    for dtype, variant in declared:
        finding = _check_variant(target, variant, str(dtype).removeprefix("torch."))
        if finding.status != "skipped":
            yield finding
    for dtype, variant in kinds(sample):
        if not takes_as_reference(target, variant):
            continue
        finding = _check_variant(target, variant, str(dtype).removeprefix("torch."))
        if finding.status == "failed" and not _answers_in(target, sample, variant, dtype):
            yield Finding("passed", advice=f"no sample has such numbers, so this is advice: {finding.message}")
            return
        elif finding.status != "skipped":
            yield finding


def _answers_in(target: Target, sample: Sample, variant: Sample, dtype: torch.dtype) -> bool:
    """Return True if the outputs that are floating for the sample have the dtype of the variant."""
    with torch.no_grad():
        usual = call_on(target.full, sample.map(torch.clone))
        outputs = call_on(target.full, variant.map(torch.clone))
    pairs = zip(usual, outputs, strict=False)
    return all(output.dtype == dtype for other, output in pairs if other.is_floating_point())


def _check_variant(target: Target, sample: Sample, label: str) -> Finding:
    with torch.no_grad():
        try:
            real = call_on(target.full, sample)
        except Exception as error:
            if label == "as given":
                raise
            return skipped(f"{label}: the op refuses it ({first_line(error)})")
        try:
            fake = fake_outputs(target, sample)
        except Exception as error:  # noqa: BLE001 - whatever the fake raises where the kernel does not is a finding
            refusal = find_refusal(error)
            if refusal is not None:
                return skipped(refusal)
            if target.overload is None:
                return skipped(f"it has no fake kernel, and cannot be traced: {first_line(root_cause(error))}")
            return failed(f"{label}: the fake kernel raises {first_line(root_cause(error))}")
    difference = find_untruth(fake, real, output_names(target, len(real)))
    if difference is None:
        return PASSED
    what, text = difference
    return failed(f"{label}: {text}", cause=_why(target, sample, what, real) if has_derived_fake(target) else "")


def _why(target: Target, sample: Sample, what: str, real: Sequence[Tensor]) -> str:
    """Return what to do about a reference whose outputs are not those of the kernel, with or without data."""
    names = output_names(target, len(real))
    if target.reference is not None and find_untruth(call_on(target.reference, sample), real, names) is None:
        return f"{META.format(what=what)}: {CONTIGUOUS}"
    if what != "stride":
        return f"the fake is derived from the reference, which returns another {what}: register_fake"
    is_contiguous = all(output.layout == torch.strided and output.is_contiguous() for output in real)
    return f"{STRIDES}: {CONTIGUOUS if is_contiguous else OTHER}"


META = (
    "a fault of torch, not of the op: the meta kernels that the reference calls return another {what} than the kernels"
)
STRIDES = "all kernels of an op return the same strides, and the fake is derived from the reference"
CONTIGUOUS = "end the reference in .contiguous(), or register_fake with x.new_empty(x.shape)"
OTHER = "let the kernel return the strides of the reference, or register_fake those of the kernel"
