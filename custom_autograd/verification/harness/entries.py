"""What the registry knows of a target that a check needs: whether its fake is derived, and its kernel replaced."""

from custom_autograd.registration.registry import Entry
from custom_autograd.verification.harness.base import Finding, skipped
from custom_autograd.verification.harness.known_kernels import key_of_kernel, label_of_kernel
from custom_autograd.verification.harness.targets import Target


def entry_of(target: Target) -> Entry | None:
    """Return what the registry knows of a target; None for what `custom_op` did not declare."""
    found = getattr(target.subject, "_entry", target.subject)
    return found if isinstance(found, Entry) else None


def has_derived_fake(target: Target) -> bool:
    """Return whether the reference stands in for a fake kernel that nobody registered."""
    entry = entry_of(target)
    return entry is not None and entry.registrations.fake is None and entry.reference() is not None


def unless_replaced(finding: Finding, target: Target, key: str) -> Finding:
    """Return what was found of a kernel that was called.

    Where its fallback ran, that this one is right says nothing.
    """
    entry = entry_of(target)
    kernels = () if entry is None else tuple(entry.kernels.all())
    given = [kernel.given for kernel in kernels if key_of_kernel(kernel) == key]
    # kernels/ lies above checks/, so that a kernel that is made at its first call is told by what it says of itself
    is_replaced = any(getattr(function, "is_replaced", False) for function in given)
    if finding.status != "passed" or not is_replaced:
        return finding
    text = f"{label_of_kernel(key)} could not be made, and its fallback ran in its place"
    return skipped(text, advice=text)
