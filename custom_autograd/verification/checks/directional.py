"""The backward agrees with finite differences along random directions, for larger numbers, zeros and ties too."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.calls.directions import find_function, look_along
from custom_autograd.verification.calls.numbers import OF_ALL, SMALL, VALUE_CHANGES
from custom_autograd.verification.harness.base import Check, Finding
from custom_autograd.verification.harness.differentiable import can_have_gradient, function_of, with_derivatives
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.harness.variants import scalars, tile_sizes, within_domain


class Directional(Check):
    """Two directions per input and variant, each a few calls, whatever the sizes; kinks are left out."""

    name = "directional"
    code = "G02"
    group = "derivatives"
    is_quick = True
    purpose = "the backward agrees with finite differences along random directions, whatever the numbers"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per input and variant."""
        yield from look_along(with_derivatives(function_of(target, sample)), "")
        others = () if target.reference is not None else _for_want_of_a_reference(target, sample)
        usual = _changed(sample, [text for text in OF_ALL if text not in SMALL])
        for label, variant in itertools.chain(usual, others):
            function = find_function(target, variant)
            if function is not None:
                yield from look_along(function, f"{label}: ")


def _for_want_of_a_reference(target: Target, sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield the scalars, small numbers and sizes at which gradients are else compared with those of the reference."""
    yield from within_domain(target, sample, scalars(sample, target.arguments))
    yield from _changed(sample, SMALL[:1])
    if all(x.is_floating_point() or x.is_complex() for x in sample.tensors()):
        yield from within_domain(target, sample, tile_sizes(sample, (256,)))


def _changed(sample: Sample, texts: Sequence[str]) -> Iterator[tuple[str, Sample]]:
    """Yield the call with all of its floating and complex numbers changed, in each of these ways."""
    for text, change, _ in VALUE_CHANGES:
        if text in texts:
            yield text, sample.map(partial(_moved, change=change))


def _moved(tensor: Tensor, change: Callable[[Tensor], Tensor | None]) -> Tensor:
    is_number = can_have_gradient(tensor) and tensor.layout == torch.strided
    found = change(tensor.detach()) if is_number else None
    return tensor if found is None else found.requires_grad_(tensor.requires_grad)
