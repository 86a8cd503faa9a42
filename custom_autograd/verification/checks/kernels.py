"""All kernels of an op compute the same, on their own device, in every layout; so do those of op.inplace and op.out."""

import contextlib
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.samples import Sample
from custom_autograd.schema.schema import INPLACE, OUT
from custom_autograd.verification.calls.call import (
    Call,
    Outcome,
    UnfitError,
    Way,
    WrongError,
    begin,
    call_of,
    differentiate,
    run,
)
from custom_autograd.verification.calls.case import Case
from custom_autograd.verification.calls.changes import LAYOUTS, SCALARS
from custom_autograd.verification.calls.kernel_dtypes import kernel_of, taken_by
from custom_autograd.verification.calls.looking import Looker
from custom_autograd.verification.calls.row import Row
from custom_autograd.verification.harness.agreement import values_of
from custom_autograd.verification.harness.base import Finding, failed, skipped
from custom_autograd.verification.harness.dispatching import (
    KernelDeclined,
    device_of_kernel,
    label_of_kernel,
)
from custom_autograd.verification.harness.op_files import has_device
from custom_autograd.verification.harness.records import is_built, reasons_of_unavailable, record_of
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
            yield from self._compare_with_default(target, sample, key)
        for one, other in itertools.combinations(present, 2):
            device, home = device_of_kernel(other), device_of_kernel(one)
            if device == home and "" in target.kernels:
                continue  # both were compared with the default kernel
            moved = sample.map(operator.methodcaller("to", home))
            elsewhere = _on(kernel_of(target, other), target, device=device, home=home)
            yield from self._compare(_with(target, one), elsewhere, moved, one, label_of_kernel(other))

    def _compare_with_default(self, target: Target, sample: Sample, key: str) -> Iterable[Finding]:
        """Yield what a kernel computes against the default one, in a dtype that it takes."""
        taken = taken_by(target, key, sample.map(operator.methodcaller("to", device_of_kernel(key))))
        if taken is None:
            yield skipped(f"{label_of_kernel(key)} takes the sample in no dtype")
            return
        text, given = taken
        for found in self._compare(_with(target, key), kernel_of(target, ""), given, key, "the default kernel"):
            is_shown = text and found.status == "failed"
            yield replace(found, message=f"{text}{found.message}", shown=(self, given) if is_shown else None)

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
        values_of(target, kernel_of(target, key), moved)
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
    return target if len(its) == 1 else replace(target, full=kernel_of(target, key))


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


class Parity(Row):
    """Each variant with a kernel of its own, on tensors as given, with gaps, of other sizes and with other scalars."""

    name = "parity"
    code = "F15"
    group = "values"
    is_quick = True
    purpose = "kernels of op.inplace and op.out write what the op returns, and leave its gradients as they are"
    is_plain = True

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless a variant has a kernel; the others are the op and a copy."""
        return None if _variants(target) else "no variant of the op has a kernel of its own"

    def _cases(self, looker: Looker) -> Iterator[Case]:
        others = [change for change in looker.changes() if change.stage == SCALARS or change.text.endswith(SIZES)]
        taken = [change for change in others if not looker.look(Case((change,))).reason]
        for kind, record in _variants(looker.target).items():
            for label, lay_out in SPACINGS:
                make = partial(_in_place if kind == INPLACE else _out, record, lay_out)
                way = Way(f"op.{kind}, {label}", make, oracle="the op itself")
                yield Case((), way)
                yield from (Case((change,), way) for change in taken if lay_out is Tensor.clone)


SIZES = (" -> 0", " -> 1", " -> 17", " -> 257")


def _variants(target: Target) -> dict[str, OpRecord]:
    record = record_of(target)
    found = {} if record is None else {kind: record.variants.get(kind) for kind in (INPLACE, OUT)}
    return {kind: variant for kind, variant in found.items() if variant is not None and variant.road.has_own_kernels}


def _in_place(record: OpRecord, lay_out: Callable[[Tensor], Tensor], target: Target, call: Call) -> Iterator[Outcome]:
    """Give what is written to a copy of the first argument, and the gradients through the write, which are derived."""
    first, plain = call.sample.tensors()[0], replace(call, needs=frozenset())
    result, *_ = begin(target, target.call, plain).values.values()
    if result.shape != first.shape or result.dtype != first.dtype:
        raise UnfitError("the result does not fit into the first argument")

    def on_a_copy(*args: object, **kwargs: object) -> object:
        given = Sample(*args, **kwargs)
        own, *others = given.tensors()
        copied = lay_out(own)
        (returned,) = call_on(_caller(record), given.with_tensors([copied, *others]))
        if returned is not copied:
            raise WrongError("something other than the first argument is returned")
        return copied

    yield begin(target, on_a_copy, plain).detached()  # the kernel, which calls with a gradient go round
    yield run(target, on_a_copy, call)


def _out(record: OpRecord, lay_out: Callable[[Tensor], Tensor], target: Target, call: Call) -> Iterator[Outcome]:
    """Give what is written to tensors for the outputs."""
    plain = replace(call, needs=frozenset())
    names = [argument.name for argument in record.declaration.schema.mutated_arguments]
    outputs = [lay_out(_marked(one)) for one in begin(target, target.call, plain).values.values()]

    def write(*args: object, **kwargs: object) -> object:
        _caller(record)(*args, **kwargs, **dict(zip(names, outputs, strict=True)))
        return outputs

    yield begin(target, write, plain).detached()


def _caller(record: OpRecord) -> Function:
    assert record.dispatched is not None  # it is declared
    record.dispatched.generate()
    return record.dispatched.call


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
