"""Variants: where op.inplace and op.out come from. Each is an op of its own, and attaches itself when declared."""

from __future__ import annotations

from custom_autograd.core.variant_schemas import INPLACE, OUT, find_problem
from custom_autograd.registration.capability import Capability
from custom_autograd.registration.registry import OpRecord


class Variant(Capability):
    """One variant of every op that can have it."""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def describe(self, record: OpRecord) -> str:
        """Return its kernels, or that it is the op and a copy, or why there is none."""
        problem = find_problem(record.declaration.schema, self.name)
        if problem is not None:
            return f"none: {problem}"
        variant = record.variants.get(self.name)
        if variant is None or not variant.has_own_kernels:
            return "derived: the op, then a copy"
        derived = variant.declaration.function
        own = [(device, one) for device, one in variant.kernels.items() if one.function is not derived]
        shown = [f"{device or 'any device'} ({kernel.location})" for device, kernel in own]
        return f"registered: {', '.join(shown)}; with gradients derived: the op, then a copy"


VARIANTS = (Variant(INPLACE), Variant(OUT))
