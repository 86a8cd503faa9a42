"""What a backward returns fits its inputs as it is, before the engine sums, casts or drops it in silence."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from custom_autograd.checks.base import PASSED, Check, Finding, NothingToCheckError, failed
from custom_autograd.checks.causes import find_cause
from custom_autograd.checks.comparison import widened
from custom_autograd.checks.differentiable import gradients_of
from custom_autograd.checks.targets import Target
from custom_autograd.core.samples import Sample, TensorLeaf
from custom_autograd.registration.registry import Entry
from custom_autograd.torch_private import verification


class Contract(Check):
    """Gradients as the backward returns them; those of ops declared here are validated whenever a backward runs."""

    name = "contract"
    code = "G01"
    group = "derivatives"
    is_quick = True
    purpose = "each gradient a backward returns has the shape, dtype, device and layout of its input"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """One finding for their number, and one per tensor."""
        if isinstance(getattr(target.subject, "entry", None), Entry):
            gradients_of(target, sample)  # raises a GradientError, which is the finding
            yield PASSED
            return
        with verification.watched_backward(target.subject) as (call, seen):
            if call is None:
                raise NothingToCheckError("its backward cannot be watched: it is not an op or a Function of Python")
            gradients_of(replace(target, call=call), sample)
        for returned in seen[:1]:
            yield _count(returned)
            for leaf in sample.leaves():
                yield from _judge_leaf(target, leaf, returned)


def _count(returned: verification.Returned) -> Finding:
    """More gradients than arguments are dropped in silence, if they are None."""
    found, expected = len(returned.grads), returned.arguments
    text = f"the backward returns {found} gradients for {expected} arguments"
    return PASSED if found == expected else failed(text, cause="an argument was removed, and its gradient was not")


def _judge_leaf(target: Target, leaf: TensorLeaf, returned: verification.Returned) -> Iterator[Finding]:
    names = [argument.name for argument in target.arguments]
    place = leaf.argument if isinstance(leaf.argument, int) else names.index(leaf.argument)
    grad = returned.grads[place] if place < len(returned.grads) else None
    if isinstance(grad, (list, tuple)):
        index = int(leaf.path.strip("[]"))
        grad = grad[index] if index < len(grad) else None
    if isinstance(grad, Tensor):
        yield _judge(target.name_of(leaf), leaf.tensor, grad)


def _judge(name: str, leaf: Tensor, grad: Tensor) -> Finding:
    for what, found, expected in (
        ("shape", tuple(grad.shape), tuple(leaf.shape)),
        ("dtype", grad.dtype, leaf.dtype),
        ("device", grad.device, leaf.device),
        ("layout", grad.layout, leaf.layout),
    ):
        if found != expected:
            message = f"the backward returns a gradient of '{name}' with {what} {found}, expected {expected}"
            return failed(f"{message}: the engine repairs it, or fails", cause=_cause(what, grad, leaf))
    return PASSED


def _cause(what: str, grad: Tensor, leaf: Tensor) -> str:
    if what == "dtype":
        return f"it is computed in {grad.dtype}; cast it to the dtype of its input"
    if what == "shape" and grad.layout == torch.strided and grad.dim() > leaf.dim():
        return find_cause(widened(grad), widened(grad.sum_to_size(leaf.shape))) or "it is not reduced"
    return ""
