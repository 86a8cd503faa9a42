"""Every kernel agrees with the default kernel, on its own device and in every memory layout."""

import operator
from collections.abc import Iterable

import torch

from custom_autograd.checks.agreement import compare_values
from custom_autograd.checks.base import Check, Finding, skipped
from custom_autograd.checks.sweeps import layouts
from custom_autograd.checks.targets import Target
from custom_autograd.core.samples import Sample


class Kernels(Check):
    """Values of each device's kernel against those of the default kernel on the same device."""

    name = "kernels"
    code = "F14"
    group = "values"
    is_quick = True
    purpose = "every kernel computes what the default kernel computes"

    def applies_to(self, target: Target) -> str | None:
        """A default kernel is needed, and another one."""
        if "" not in target.kernels:
            return "the op has no default kernel to compare with"
        if len(target.kernels) == 1:
            return "the op has no kernel besides the default one"
        return None

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """One finding per kernel and layout; a device that is not here is skipped, and said to be."""
        for device in target.kernels:
            if not device:
                continue
            if not has_device(device):
                yield skipped(f"there is no {device} device here")
                continue
            moved = sample.map(operator.methodcaller("to", device))
            for label, variant in layouts(moved, written=target.written_places(sample)):
                yield compare_values(
                    target, target.kernels[""], variant, f"{device} kernel, {label}", "the default kernel"
                )


def has_device(device: str) -> bool:
    """Whether a tensor can be made on a device of this type here."""
    if device == "cpu":
        return True
    module = getattr(torch, device, None)
    return bool(module is not None and hasattr(module, "is_available") and module.is_available())
