"""An op and its variants agree: kernels of op.inplace and op.out write what the op returns, and its gradients stay."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.samples import Sample
from custom_autograd.schema.schema import INPLACE, OUT
from custom_autograd.verification.harness.agreement import find_gradient_difference
from custom_autograd.verification.harness.base import PASSED, Check, Finding, NothingToCheckError, failed, skipped
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.differentiable import function_of
from custom_autograd.verification.harness.records import output_names, record_of
from custom_autograd.verification.harness.targets import Function, Target, call_on

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
            for label, lay_out in LAYOUTS:
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

    difference = find_gradient_difference(dataclasses.replace(function, call=on_a_copy), function)
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


LAYOUTS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("as given", Tensor.clone),
    ("with gaps", _with_gaps),
)
