"""The dtypes in which the kernels of an op run that take no sample as it is: what never runs is not verified."""

from __future__ import annotations

from collections.abc import Iterator

from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import kept_random_state
from custom_autograd.verification.calls.numbers import casts
from custom_autograd.verification.harness.agreement import values_of
from custom_autograd.verification.harness.dispatching import (
    KernelDeclined,
    as_dispatched,
    completing,
    device_of_kernel,
    device_type_of,
)
from custom_autograd.verification.harness.sweeps import copy
from custom_autograd.verification.harness.targets import Function, Target


def kernel_of(target: Target, key: str) -> Function:
    """Return one kernel of a target, called as the dispatcher calls it."""
    return completing(target.complete, as_dispatched(target.kernels[key]))


def taken_by(target: Target, key: str, sample: Sample) -> tuple[str, Sample] | None:
    """Return what is changed, in words, and the sample, or the sample in the first dtype that a kernel takes.

    None if the condition of the kernel takes it in no dtype.
    """
    if _takes(target, key, sample):
        return "", sample
    for _, text, cast in casts(sample):
        changed = cast(sample)
        if changed is not None and _takes(target, key, changed):
            pairs = zip(changed.tensors(), sample.tensors(), strict=True)
            return f"{text}, ", sample.with_tensors([x.requires_grad_(y.requires_grad) for x, y in pairs])
    return None


def in_dtypes_of_kernels(target: Target, sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield the sample in each dtype in which a kernel of its device runs that does not take it as it is."""
    device = device_type_of(sample)
    found = [taken_by(target, key, sample) for key in target.kernels if device_of_kernel(key) == device]
    yield from {row[0]: row for row in found if row is not None and row[0]}.values()


def _takes(target: Target, key: str, sample: Sample) -> bool:
    """Return False if the condition of a kernel does not accept a call; what else it raises, others tell."""
    try:
        with kept_random_state():
            values_of(target, kernel_of(target, key), copy(sample))
    except Exception as error:  # noqa: BLE001 - what else a kernel raises, the checks that call it tell
        return not isinstance(error, KernelDeclined)
    return True
