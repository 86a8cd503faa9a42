"""Every kernel agrees with the default kernel and with every other, on its own device and in every memory layout."""

import itertools
import operator
from collections.abc import Iterable

import torch

from custom_autograd.checks.agreement import compare_values
from custom_autograd.checks.base import Check, Finding, skipped
from custom_autograd.checks.sweeps import layouts
from custom_autograd.checks.targets import Function, Target
from custom_autograd.core.samples import Sample


class Kernels(Check):
    """Values of each device's kernel against the default kernel on the same device, and against other devices'."""

    name = "kernels"
    code = "F14"
    group = "values"
    is_quick = True
    purpose = "all kernels of an op compute the same"

    def applies_to(self, target: Target) -> str | None:
        """Two kernels are needed."""
        if len(target.kernels) > 1:
            return None
        return "the op has no kernel besides the default one" if "" in target.kernels else "the op has no two kernels"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """One finding per kernel and layout, and one per pair of devices; a device that is not here is skipped."""
        devices = [device for device in target.kernels if device]
        for device in devices:
            if not has_device(device):
                yield skipped(f"there is no {device} device here")
            elif "" in target.kernels:
                moved = sample.map(operator.methodcaller("to", device))
                for label, variant in layouts(moved, written=target.written_places(sample)):
                    place = f"{device} kernel, {label}"
                    yield compare_values(target, target.kernels[""], variant, place, "the default kernel")
        for one, other in itertools.combinations(filter(has_device, devices), 2):
            moved = sample.map(operator.methodcaller("to", one))
            elsewhere = _on(target.kernels[other], device=other, home=one)
            yield compare_values(target, elsewhere, moved, f"{one} kernel", f"the {other} kernel")


def _on(kernel: Function, *, device: str, home: str) -> Function:
    """The kernel of one device for tensors of another; its results come home."""

    def call(*args: object, **kwargs: object) -> object:
        moved = Sample(*args, **kwargs).map(lambda tensor: tensor.to(device))
        return Sample(kernel(*moved.args, **moved.kwargs)).map(lambda tensor: tensor.to(home)).args[0]

    return call


def has_device(device: str) -> bool:
    """Whether a tensor can be made on a device of this type here."""
    if device == "cpu":
        return True
    module = getattr(torch, device, None)
    return bool(module is not None and hasattr(module, "is_available") and module.is_available())
