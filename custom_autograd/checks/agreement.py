"""Whether an op agrees with another function that computes the same: a reference, or another kernel."""

import torch
from torch import Tensor

from custom_autograd.checks.base import PASSED, Finding, failed, first_line, skipped
from custom_autograd.checks.comparison import find_difference
from custom_autograd.checks.targets import Function, Target, call_on
from custom_autograd.core.samples import Sample


def compare_values(target: Target, other: Function, sample: Sample, label: str, name: str) -> Finding:
    """The target's values on one variant of a sample against those of another function."""
    with torch.no_grad():
        try:
            expected = values_of(target, other, sample)
            found = values_of(target, target.full, sample)
        except Exception as error:
            if label == "as given":
                raise
            return skipped(f"{label}: it is refused ({first_line(error)})")
    difference = find_difference(found, expected)
    return PASSED if difference is None else failed(f"{label}: {difference}, by {name}")


def values_of(target: Target, function: Function, sample: Sample) -> tuple[Tensor, ...]:
    """What a function returns for copies of a sample's tensors, then the inputs the target writes to."""
    copies = sample.map(lambda tensor: tensor if 0 in tensor.stride() else tensor.detach().clone())
    outputs = call_on(function, copies)
    written = [leaf.tensor for leaf in copies.leaves() if target.argument_of(leaf).is_mutated]
    return tuple(output.detach() for output in outputs) + tuple(written)
