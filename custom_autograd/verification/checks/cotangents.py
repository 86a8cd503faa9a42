"""The backward takes whatever gradient arrives, expanded, transposed or none at all, and does not write to it."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    find_refusal,
    first_line,
    skipped,
)
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.differentiable import (
    TensorFunction,
    function_of,
    signed_like,
    vector_jacobian,
)
from custom_autograd.verification.harness.sweeps import conjugated, negated, sliced, transposed
from custom_autograd.verification.harness.targets import Target


class Cotangents(Check):
    """Incoming gradients in the layouts and gaps in which autograd really sends them."""

    name = "cotangents"
    code = "G05"
    group = "layout"
    is_quick = True
    needs = ("gradcheck",)
    purpose = "the backward takes incoming gradients of any layout, or none, and leaves them unchanged"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Compare each layout with a contiguous copy of the same numbers, and each output left out with zeros."""
        function = function_of(target, sample)
        outputs = function(*function.inputs)
        if not any(output.requires_grad for output in outputs):
            raise NothingToCheckError("no output carries a gradient")
        writes = _check_writes(function, outputs)
        yield writes
        if writes is not PASSED:
            return
        yield from _check_layouts(function, outputs)
        yield from _check_undefined(function, outputs)


def _check_writes(function: TensorFunction, outputs: Sequence[Tensor]) -> Finding:
    sent = signed_like(outputs)
    before = [u.clone() for u in sent]
    vector_jacobian(function, function.inputs, sent)
    if find_difference(sent, before) is not None:
        return failed("the backward writes to its incoming gradient; it belongs to the engine")
    return PASSED


def _check_layouts(function: TensorFunction, outputs: Sequence[Tensor]) -> Iterator[Finding]:
    plain = signed_like(outputs)
    one_value = [torch.full_like(u, 1.3, memory_format=torch.contiguous_format) for u in plain]
    expanded = [u.new_full((), 1.3).expand(u.shape) for u in plain]
    yield _compare(function, "an expanded gradient, as sum() sends", expanded, one_value)
    most = max((u.dim() for u in plain), default=0)
    for dim in range(most if most > 1 else 0):
        sent = [u if u.dim() <= dim else u.narrow(dim, 0, min(1, u.shape[dim])).expand_as(u) for u in plain]
        label = f"a gradient expanded along dimension {dim}, as sum({dim}) sends"
        yield _compare(function, label, sent, [u.clone(memory_format=torch.contiguous_format) for u in sent])
    for label, change in LAYOUTS:
        changed = [change(u) for u in plain]
        if any(u is not None for u in changed):
            sent = [before if after is None else after for before, after in zip(plain, changed, strict=True)]
            try:
                yield _compare(function, label, sent, plain)
            except (RuntimeError, TypeError) as error:
                refusal = find_refusal(error)
                if change not in (conjugated, negated) and refusal is None:
                    raise
                yield skipped(f"{label} is refused: {refusal or first_line(error)}")


LAYOUTS = (
    ("a transposed gradient", transposed),
    ("a sliced gradient", sliced),
    ("a lazily conjugated gradient", conjugated),
    ("a lazily negated gradient", negated),
)
"""What views above the op send back."""


def _compare(function: TensorFunction, label: str, sent: Sequence[Tensor], plain: Sequence[Tensor]) -> Finding:
    expected = vector_jacobian(function, function.inputs, [u.clone() for u in plain])
    found = vector_jacobian(function, function.inputs, sent)
    names = [f"gradient of '{name}'" for name in function.names]
    difference = find_difference(found, expected, names=names)
    if difference is not None:
        return difference.failed(f"wrong for {label}: {difference}")
    if find_difference(sent, plain) is not None:
        return failed(f"the backward writes to its incoming gradient, {label}; it belongs to the engine")
    return PASSED


def _check_undefined(function: TensorFunction, outputs: Sequence[Tensor]) -> Iterator[Finding]:
    """Leave one output at a time out of the loss, so that its gradient is undefined."""
    able = [i for i, output in enumerate(outputs) if output.requires_grad]
    if len(able) < 2:
        return
    cotangents = signed_like(outputs)
    for left_out in able:
        zeroed = [torch.zeros_like(u) if i == left_out else u for i, u in enumerate(cotangents)]
        expected = vector_jacobian(function, function.inputs, zeroed)
        label = f"where no gradient arrives for {function.output_names[left_out]}"
        try:
            found = _without(function, cotangents, [i for i in able if i != left_out])
        except (TypeError, AttributeError) as error:
            yield failed(f"{label}, the backward raises {type(error).__name__}: {error}")
            continue
        names = [f"gradient of '{name}'" for name in function.names]
        difference = find_difference(found, expected, names=names)
        yield PASSED if difference is None else difference.failed(f"{label}: {difference}")


def _without(function: TensorFunction, cotangents: Sequence[Tensor], kept: Sequence[int]) -> tuple[Tensor, ...]:
    leaves = function.inputs
    outputs = function(*leaves)
    grads = torch.autograd.grad([outputs[i] for i in kept], leaves, [cotangents[i] for i in kept], allow_unused=True)
    return tuple(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True))
