"""Every kernel agrees with the default kernel and with every other, on its own device and in every memory layout."""

import itertools
import operator
from collections.abc import Iterable
from dataclasses import replace

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.core.samples import Sample
from custom_autograd.verification.harness.agreement import compare_values
from custom_autograd.verification.harness.base import Check, Finding, first_line, skipped
from custom_autograd.verification.harness.devices import has_device
from custom_autograd.verification.harness.dispatching import completing
from custom_autograd.verification.harness.known_kernels import as_dispatched, device_of_kernel, label_of_kernel
from custom_autograd.verification.harness.records import unless_replaced
from custom_autograd.verification.harness.sweeps import layouts
from custom_autograd.verification.harness.targets import Function, Target


class Kernels(Check):
    """Values of each device's kernel against the default kernel on the same device, and against other devices'."""

    name = "kernels"
    code = "F14"
    group = "values"
    is_quick = True
    purpose = "all kernels of an op compute the same"

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless there are two kernels."""
        if len(target.kernels) > 1:
            return None
        return "the op has no kernel besides the default one" if "" in target.kernels else "the op has no two kernels"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per kernel and layout, and one per pair of kernels.

        A device that is not here is skipped.
        """
        keys = [key for key in target.kernels if device_of_kernel(key)]
        for key in keys:
            if not has_device(device_of_kernel(key)):
                yield skipped(f"there is no {device_of_kernel(key)} device here")
            elif "" in target.kernels:
                yield from _against_default(target, key, sample)
        present = [key for key in keys if has_device(device_of_kernel(key))]
        for one, other in itertools.combinations(present, 2):
            device, home = device_of_kernel(other), device_of_kernel(one)
            if device == home and "" in target.kernels:
                continue  # both were compared with the default kernel
            moved = sample.map(operator.methodcaller("to", home))
            elsewhere = _on(_kernel(target, other), target, device=device, home=home)
            finding = _compare(_with(target, one), elsewhere, moved, label_of_kernel(one)[4:], label_of_kernel(other))
            yield unless_replaced(unless_replaced(finding, target, one), target, other)


def _against_default(target: Target, key: str, sample: Sample) -> Iterable[Finding]:
    moved = sample.map(operator.methodcaller("to", device_of_kernel(key)))
    for label, variant in layouts(moved, written=target.written_positions(sample)):
        context = f"{label_of_kernel(key)[4:]}, {label}"
        finding = _compare(_with(target, key), _kernel(target, ""), variant, context, "the default kernel")
        yield unless_replaced(finding, target, key)


def _compare(target: Target, other: Function, sample: Sample, label: str, name: str) -> Finding:
    try:
        return compare_values(target, other, sample, label, name)
    except KernelUnavailable as error:
        return skipped(first_line(error))


def _with(target: Target, key: str) -> Target:
    """Return the target with that kernel of several on its device; the only one is reached as callers reach it."""
    its = [other for other in target.kernels if device_of_kernel(other) == device_of_kernel(key)]
    return target if len(its) == 1 else replace(target, full=_kernel(target, key))


def _kernel(target: Target, key: str) -> Function:
    return completing(target.complete, as_dispatched(target.kernels[key]))


def _on(kernel: Function, target: Target, *, device: str, home: str) -> Function:
    """Return the kernel of one device for tensors of another; its results come home, and what it writes."""

    def call(*args: object, **kwargs: object) -> object:
        given = Sample(*args, **kwargs)
        moved = given.map(lambda tensor: tensor.to(device, copy=True))
        result = kernel(*moved.args, **moved.kwargs)
        tensors = list(zip(given.tensors(), moved.tensors(), strict=True))
        for position in target.written_positions(given):
            tensor, written = tensors[position]
            tensor.copy_(written)
        return Sample(result).map(lambda tensor: tensor.to(home)).args[0]

    return call
