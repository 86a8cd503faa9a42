"""Facts of the registry that a check needs of a target: is its fake derived, or its kernel replaced?"""

from collections.abc import Mapping
from typing import Any

from custom_autograd.registration import registry
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import FakeRule
from custom_autograd.verification.harness.base import Finding, skipped
from custom_autograd.verification.harness.known_kernels import key_of_kernel, label_of_kernel
from custom_autograd.verification.harness.targets import Target


def record_of(target: Target) -> OpRecord | None:
    """Return the op record of a target; None for what `custom_op` did not declare."""
    return registry.record_of(target.subject)


def has_derived_fake(target: Target) -> bool:
    """Return True if the reference replaces a fake kernel, because none is registered."""
    record = record_of(target)
    return record is not None and record.registrations.get(FakeRule) is None and record.reference() is not None


def is_built(target: Target) -> bool:
    """Return True if a kernel or a rule of the target is made at its first call."""
    return any(hasattr(function, "unavailable_because") for _, function in _functions(target))


def reasons_of_unavailable(target: Target) -> Mapping[str, str]:
    """Return why kernels and rules could not be built or were passed over, by key or title, as far as is known."""
    record = record_of(target)
    passed_over = {} if record is None else record.kernels.passed_over
    found = {key_of_kernel(kernel): reason for kernel, reason in passed_over.items()}
    # kernels/ lies above checks/, so that a kernel that is made at its first call is told by what it says of itself
    return found | {
        name: function.unavailable_because
        for name, function in _functions(target)
        if getattr(function, "unavailable_because", "")
    }


def _functions(target: Target) -> list[tuple[str, Any]]:  # Any: kernels and rules
    record = record_of(target)
    if record is None:
        return []
    rules = [(rule.title, function) for rule in record.registrations.all() for function in rule.functions]
    return [*((key_of_kernel(kernel), kernel.given) for kernel in record.kernels.all()), *rules]


def unless_replaced(finding: Finding, target: Target, key: str) -> Finding:
    """Return the finding of a kernel, or a skip if its fallback ran instead.

    Where its fallback ran, that this one is right says nothing.
    """
    record = record_of(target)
    kernels = () if record is None else tuple(record.kernels.all())
    given = [kernel.given for kernel in kernels if key_of_kernel(kernel) == key]
    is_replaced = any(getattr(function, "is_replaced", False) for function in given)
    if finding.status != "passed" or not is_replaced:
        return finding
    text = f"{label_of_kernel(key)} could not be made, and its fallback ran in its place"
    return skipped(text, advice=text)
