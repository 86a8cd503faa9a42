"""The gallery's default kernels, which serve devices without a kernel of their own, lay results out as the fakes do."""

from collections.abc import Callable

import pytest
import torch
from tables import each
from torch._subclasses import FakeTensorMode

from custom_autograd.registration.registry import OpRecord, all_records
from custom_autograd.registration.rule_types import Samples
from custom_autograd.schema.samples import Sample, TensorFactory
from custom_autograd.verification.calls.layouts import of_all
from custom_autograd.verification.harness.targets import call_on, target_of
from gallery_values import GALLERY, load

# Their results are an argument, or as large as the values say.
NOT_COMPARED = ("gallery::scale_grad", "gallery::reverse_grad", "gallery::nms")
NO_LAYOUTS = {("gallery::pair_distances", "expanded")}  # a cell of equal rows has no inverse


def records() -> list[OpRecord]:
    """Every op of the gallery that has a default kernel and samples."""
    for path in sorted(GALLERY.glob("*.py")):
        load(path.stem)
    found = [record for record in all_records() if record.name.startswith("gallery::")]
    return [record for record in found if None in record.kernels and record.registrations.get(Samples) is not None]


RECORDS = {record.name: record for record in records() if record.name not in NOT_COMPARED}


def strides_of(function: Callable[..., object], sample: Sample) -> list[tuple[torch.dtype, list[int]]]:
    """Strides of the dimensions in which results have more than one element, and their dtypes."""
    with torch.no_grad():
        found = call_on(function, sample)
    return [
        (x.dtype, [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1 and x.numel()])
        for x in found
    ]


@pytest.mark.slow
@each("name", RECORDS)
def test_results_of_the_default_kernel_have_the_strides_of_the_fake(name: str) -> None:
    target = target_of(RECORDS[name])
    rule = RECORDS[name].registrations.get(Samples)
    assert rule is not None
    samples = [sample for sample in rule.function(TensorFactory(dtype=torch.float64)) if sample.error is None]
    for sample in samples:
        for label, variant in of_all(sample, written=target.written_positions(sample)):
            if label in ("conjugated", "negated") or (name, label) in NO_LAYOUTS:
                continue
            mode = FakeTensorMode()
            fake = variant.map(mode.from_tensor)
            with mode:
                expected = strides_of(target.full, fake)

            assert expected == strides_of(target.kernels[""], target.complete(variant)), f"{sample!r}, {label}"
