"""Which calls an op takes that its author did not declare, asked on the CPU.

An accelerator does not refuse an index beyond a tensor: it fails everything that the process does on it afterwards.
"""

import contextlib
from collections.abc import Iterable, Iterator

import torch

from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import kept_random_state
from custom_autograd.verification.harness.targets import Function, Target, call_on


def within_domain(
    target: Target, sample: Sample, variants: Iterable[tuple[str, Sample]]
) -> Iterator[tuple[str, Sample]]:
    """Yield the variants of a sample that can be called on its device, with their labels."""
    judge = _judge(target, sample)
    for label, variant in variants:
        if judge is None or _takes(judge, variant):
            yield label, variant


def is_within_domain(target: Target, sample: Sample, variant: Sample) -> bool:
    """Return False if the op, or else its reference, raises for a variant on the CPU, where it takes the sample.

    True for samples on the CPU, where a call that is refused does no harm.
    """
    return any(within_domain(target, sample, [("", variant)]))


def _judge(target: Target, sample: Sample) -> Function | None:
    """Return what is asked on the CPU; None if the sample is there, or nothing takes it there."""
    if all(tensor.device.type == "cpu" for tensor in sample.tensors()):
        return None
    functions = (function for function in (target.full, target.reference) if function is not None)
    return next((function for function in functions if _takes(function, sample)), None)


def _takes(function: Function, sample: Sample) -> bool:
    with torch.no_grad(), kept_random_state(), contextlib.suppress(Exception):
        call_on(function, sample.map(lambda tensor: tensor.detach().clone().cpu()))
        return True
    return False
