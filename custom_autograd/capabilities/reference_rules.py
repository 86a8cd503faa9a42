"""The reference, which checks compare with and which serves as what is not registered; the samples; the variants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.core.locations import location_of
from custom_autograd.registration.capability import Capability, add
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import ReferenceRule, Samples
from custom_autograd.registration.rules import check_signature, check_surrogate
from custom_autograd.schema.schema import INPLACE, OUT, find_problem

F = TypeVar("F", bound=Callable[..., Any])


def register(record: OpRecord, function: F, *, surrogate: str | None, replace: bool) -> F:
    """Register the op in differentiable PyTorch operations."""
    registered = adapter_of(record.declaration).accepting(ReferenceRule.kind, function)
    check_surrogate(record.declaration, function, surrogate)
    add(record, ReferenceRule(location_of(registered), registered, surrogate), replace=replace)
    return function


def register_samples(record: OpRecord, function: F, *, replace: bool) -> F:
    """Register a generator of samples."""
    check_signature(record.declaration, "generator of samples", function, ["make"], may_yield=True)
    record.add(Samples(location_of(function), function), replace=replace)
    return function


class VariantCapability(Capability):
    """One variant of every op that can have it."""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def describe(self, record: OpRecord) -> str:
        """Return its kernels, or that it is the op and a copy, or why there is none."""
        problem = find_problem(record.declaration.schema, self.name)
        if problem is not None:
            return f"none: {problem}"
        variant = record.variants.get(self.name)
        if variant is None or not variant.road.has_own_kernels:
            return "derived: the op, then a copy"
        derived = variant.declaration.function
        own = [(device, one) for device, one in variant.kernels.items() if one.function is not derived]
        shown = [f"{device or 'any device'} ({kernel.location})" for device, kernel in own]
        return f"registered: {', '.join(shown)}; with gradients derived: the op, then a copy"


VARIANTS = (VariantCapability(INPLACE), VariantCapability(OUT))
