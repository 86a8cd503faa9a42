"""Kernels, reverse mode and forward mode: what the runtime attaches to the dispatcher for every op."""

from __future__ import annotations

from custom_autograd.autograd.plan import make_plan
from custom_autograd.dispatch import attaching as autograd_kernel
from custom_autograd.dispatch.composition import find_composition
from custom_autograd.registration.capability import Capability, registered
from custom_autograd.registration.registry import OpRecord


class Kernels(Capability):
    """The op's kernels, its Autograd kernel and its version counters."""

    name = "kernels"

    def attach(self, record: OpRecord) -> None:
        """Register all three; they look up rules when they run."""
        autograd_kernel.attach(record)

    def describe(self, record: OpRecord) -> str:
        """Return the device types with a kernel of their own, and the default kernel."""
        kernels = [
            f"{kernel.title.replace('default', 'any device', 1)} ({kernel.place})" for kernel in record.kernels.all()
        ]
        return f"registered: {', '.join(kernels)}"


class Backward(Capability):
    """Reverse mode."""

    name = "backward"

    def describe(self, record: OpRecord) -> str:
        """Return the rules that return gradients, and what the reference adds."""
        plan = make_plan(record)
        if not plan.declaration.schema.differentiable_arguments:
            return "not differentiable"
        parts = [f"{rule.title} ({rule.location})" for rule in record.registrations.gradient_rules()]
        if not parts:
            return (
                "derived from the reference"
                if plan.reference or find_composition(record)
                else "missing: register_backward"
            )
        if plan.uncovered:
            source = "derived from the reference" if plan.reference else "missing"
            parts.append(f"{', '.join(plan.uncovered)}: {source}")
        return f"registered: {', '.join(parts)}"


class ForwardMode(Capability):
    """Forward mode: tangents."""

    name = "jvp"

    def describe(self, record: OpRecord) -> str:
        """Return the rule, or what it is derived from."""
        plan = make_plan(record)
        if not plan.declaration.schema.differentiable_arguments:
            return "not differentiable"
        found = registered(record.registrations.jvp)
        if found is not None:
            return found
        if any(rule.is_once_differentiable for rule in plan.rules):
            return "missing: the backward is once-differentiable"
        if plan.rules or plan.drop_in:
            return "derived from the backward"
        return "derived from the reference" if plan.reference or find_composition(record) else "missing: register_jvp"
