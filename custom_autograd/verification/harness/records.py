"""Facts of the registry that a check needs of a target: is its fake derived, or its kernel replaced?"""

from custom_autograd.registration import registry
from custom_autograd.registration.registry import OpRecord
from custom_autograd.verification.harness.base import Finding, skipped
from custom_autograd.verification.harness.known_kernels import key_of_kernel, label_of_kernel
from custom_autograd.verification.harness.targets import Target


def record_of(target: Target) -> OpRecord | None:
    """Return the op record of a target; None for what `custom_op` did not declare."""
    return registry.record_of(target.subject)


def has_derived_fake(target: Target) -> bool:
    """Return True if the reference replaces a fake kernel, because none is registered."""
    record = record_of(target)
    return record is not None and record.registrations.fake is None and record.reference() is not None


def unless_replaced(finding: Finding, target: Target, key: str) -> Finding:
    """Return the finding of a kernel, or a skip if its fallback ran instead.

    Where its fallback ran, that this one is right says nothing.
    """
    record = record_of(target)
    kernels = () if record is None else tuple(record.kernels.all())
    given = [kernel.given for kernel in kernels if key_of_kernel(kernel) == key]
    # kernels/ lies above checks/, so that a kernel that is made at its first call is told by what it says of itself
    is_replaced = any(getattr(function, "is_replaced", False) for function in given)
    if finding.status != "passed" or not is_replaced:
        return finding
    text = f"{label_of_kernel(key)} could not be made, and its fallback ran in its place"
    return skipped(text, advice=text)
