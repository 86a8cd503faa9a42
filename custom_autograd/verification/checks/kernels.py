"""All kernels of an op compute the same, on their own device, in every layout; so do those of op.inplace and op.out."""

import contextlib
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.samples import Sample
from custom_autograd.schema.schema import INPLACE, OUT
from custom_autograd.verification.calls.call import call_of, differentiate
from custom_autograd.verification.calls.changes import LAYOUTS
from custom_autograd.verification.calls.row import Row
from custom_autograd.verification.harness.agreement import find_gradient_difference, values_of
from custom_autograd.verification.harness.base import PASSED, Check, Finding, NothingToCheckError, failed, skipped
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.differentiable import function_of
from custom_autograd.verification.harness.dispatching import (
    KernelDeclined,
    as_dispatched,
    completing,
    device_of_kernel,
    label_of_kernel,
)
from custom_autograd.verification.harness.op_files import has_device
from custom_autograd.verification.harness.records import is_built, output_names, reasons_of_unavailable, record_of
from custom_autograd.verification.harness.targets import Function, Target, call_on


class Kernels(Row):
    """Values of each device's kernel against the default kernel on the same device, and against other devices'."""

    name = "kernels"
    code = "F14"
    group = "values"
    is_quick = True
    purpose = "all kernels of an op can be built, and compute the same"
    stages = (LAYOUTS,)
    begins_plain = True
    is_of_values = True
    asks_reference = True

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless there are two kernels, or one that has to be built."""
        if len(target.kernels) > 1 or is_built(target):
            return None
        return ALONE if "" in target.kernels else "the op has no two kernels"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per kernel, and for those that run, one per layout and per pair.

        A device that is not here is skipped.
        """
        present = []
        for key in target.kernels:
            device = device_of_kernel(key)
            if device and not has_device(device):
                yield skipped(f"there is no {device} device here")
                continue
            reason = _find_reason(target, key, sample)
            if reason:
                yield failed(f"{label_of_kernel(key)} does not run: {reason}", cause=UNAVAILABLE)
            elif device:
                present.append(key)
        if len(target.kernels) == 1:
            yield skipped(ALONE)
        yield from _look_at_rules(target, sample)
        for key in present if "" in target.kernels else ():
            moved = sample.map(operator.methodcaller("to", device_of_kernel(key)))
            yield from self._compare(_with(target, key), _kernel(target, ""), moved, key, "the default kernel")
        for one, other in itertools.combinations(present, 2):
            device, home = device_of_kernel(other), device_of_kernel(one)
            if device == home and "" in target.kernels:
                continue  # both were compared with the default kernel
            moved = sample.map(operator.methodcaller("to", home))
            elsewhere = _on(_kernel(target, other), target, device=device, home=home)
            yield from self._compare(_with(target, one), elsewhere, moved, one, label_of_kernel(other))

    def _compare(self, target: Target, other: Function, sample: Sample, key: str, oracle: str) -> Iterable[Finding]:
        """Yield what a kernel computes in each layout against another one."""
        label = label_of_kernel(key)[4:]
        for finding in super().run(replace(target, reference=other, reference_name=oracle), sample):
            advice = f"{label}, {finding.advice}" if finding.advice else ""
            yield replace(finding, message=f"{label}, {finding.message}", advice=advice)


def _find_reason(target: Target, key: str, sample: Sample) -> str:
    """Return why a kernel cannot be built or was passed over; empty if it runs, or raises anything else."""
    device = device_of_kernel(key)
    moved = sample.map(operator.methodcaller("to", device)) if device else sample
    try:
        values_of(target, _kernel(target, key), moved)
    except KernelDeclined:
        return ""
    except KernelUnavailable as error:
        return str(error)
    except Exception:  # noqa: BLE001 - what it raises is a finding of the comparisons
        return ""
    return reasons_of_unavailable(target).get(key, "")


def _look_at_rules(target: Target, sample: Sample) -> Iterable[Finding]:
    """Yield a failure for each rule that cannot be built; its backward has run by then."""
    if not is_built(target):
        return
    with contextlib.suppress(Exception):  # what it raises is a finding of the checks of derivatives
        differentiate(target, call_of(target, sample))
    for title, reason in reasons_of_unavailable(target).items():
        if title not in target.kernels:
            yield failed(f"the {title} rule does not run: {reason}", cause=UNAVAILABLE)


ALONE = "the op has no kernel besides the default one"

UNAVAILABLE = "something else runs in its place, and is what the other checks look at"


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


ByName = Mapping[str, Tensor]
"""The outputs of the op, by the names that messages have for them."""


class Parity(Check):
    """Each variant with a kernel of its own, on tensors as given and on tensors with gaps between their elements."""

    name = "parity"
    code = "F15"
    group = "values"
    is_quick = True
    purpose = "kernels of op.inplace and op.out write what the op returns, and leave its gradients as they are"

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless a variant has a kernel; the others are the op and a copy."""
        return None if _variants(target) else "no variant of the op has a kernel of its own"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per variant and layout, and one for the gradient through op.inplace."""
        plain = sample.map(lambda tensor: tensor.detach())
        with torch.no_grad():
            outputs = call_on(target.call, plain.map(Tensor.clone))
        expected = dict(zip(output_names(target, len(outputs)), outputs, strict=True))
        for kind, record in _variants(target).items():
            for label, lay_out in SPACINGS:
                run = _run_inplace if kind == INPLACE else _run_out
                yield run(record, plain, expected, f"op.{kind}, {label}", lay_out)
        if INPLACE in _variants(target) and _can_hold(plain, expected):
            yield _gradient(target, sample, _variants(target)[INPLACE])


def _variants(target: Target) -> dict[str, OpRecord]:
    record = record_of(target)
    if record is None:
        return {}
    return {kind: record.variants[kind] for kind in (INPLACE, OUT) if _has_own_kernels(record, kind)}


def _has_own_kernels(record: OpRecord, kind: str) -> bool:
    return kind in record.variants and record.variants[kind].road.has_own_kernels


def _run_inplace(
    record: OpRecord, sample: Sample, expected: ByName, label: str, lay_out: Callable[[Tensor], Tensor]
) -> Finding:
    if not _can_hold(sample, expected):
        return skipped(f"{label}: the result does not fit into the first argument")
    first, *others = sample.tensors()
    copies = [lay_out(first), *(other.clone() for other in others)]
    with torch.no_grad():
        (returned,) = call_on(_caller(record), sample.with_tensors(copies))
    if returned is not copies[0]:
        return failed(f"{label}: something other than the first argument is returned")
    for other, copy in zip(others, copies[1:], strict=True):
        if find_difference((copy,), (other,)) is not None:
            return failed(f"{label}: another argument than the first is written to")
    return _compare((copies[0],), expected, label)


def _run_out(
    record: OpRecord, sample: Sample, expected: ByName, label: str, lay_out: Callable[[Tensor], Tensor]
) -> Finding:
    names = [argument.name for argument in record.declaration.schema.mutated_arguments]
    targets = [lay_out(_marked(one)) for one in expected.values()]
    copies = sample.map(Tensor.clone)
    keywords = {**copies.kwargs, **dict(zip(names, targets, strict=True))}
    with torch.no_grad():
        _caller(record)(*copies.args, **keywords)
    for copy, given in zip(copies.tensors(), sample.tensors(), strict=True):
        if find_difference((copy,), (given,)) is not None:
            return failed(f"{label}: an argument is written to")
    return _compare(tuple(targets), expected, label)


def _compare(found: tuple[Tensor, ...], expected: ByName, label: str) -> Finding:
    difference = find_difference(found, tuple(expected.values()), names=tuple(expected))
    return PASSED if difference is None else difference.failed(f"{label}: {difference}, by the op itself")


def _gradient(target: Target, sample: Sample, record: OpRecord) -> Finding:
    """Compare the gradients through the write, which are derived, with those of the op."""
    try:
        function = function_of(target, sample)
    except NothingToCheckError as reason:
        return skipped(f"op.inplace, gradient: {reason}")
    call = _caller(record)

    def on_a_copy(*args: object, **kwargs: object) -> object:
        first, *others = Sample(*args, **kwargs).tensors()
        fresh = Sample(*args, **kwargs).with_tensors([first.clone(), *others])
        return call(*fresh.args, **fresh.kwargs)

    difference = find_gradient_difference(replace(function, call=on_a_copy), function)
    return PASSED if difference is None else difference.failed(f"op.inplace, {difference}, by the op itself")


def _caller(record: OpRecord) -> Function:
    assert record.dispatched is not None  # it is declared
    record.dispatched.generate()
    return record.dispatched.call


def _can_hold(sample: Sample, expected: ByName) -> bool:
    first, result = sample.tensors()[0], next(iter(expected.values()))
    return result.shape == first.shape and result.dtype == first.dtype


def _marked(tensor: Tensor) -> Tensor:
    """Return a tensor to write to, with what no op returns everywhere: NaN, or the largest number."""
    is_wide = tensor.is_floating_point() or tensor.is_complex()
    return torch.full_like(tensor, float("nan") if is_wide else 1)


def _with_gaps(tensor: Tensor) -> Tensor:
    """Return the tensor at every second index of its last dimension."""
    if tensor.dim() == 0:
        return tensor.clone()
    wide = tensor.repeat_interleave(2, dim=-1)
    return wide[..., ::2]


SPACINGS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("as given", Tensor.clone),
    ("with gaps", _with_gaps),
)
