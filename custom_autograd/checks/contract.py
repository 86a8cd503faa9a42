"""What a backward returns fits its inputs as it is, before the engine sums, casts or drops it in silence."""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd.graph import Node

from custom_autograd.checks.base import PASSED, Check, Finding, NothingToCheckError, failed
from custom_autograd.checks.causes import find_cause
from custom_autograd.checks.comparison import widened
from custom_autograd.checks.differentiable import differentiable_positions, gradients_for, signed_like
from custom_autograd.checks.targets import Target, call_on
from custom_autograd.core.samples import Sample
from custom_autograd.torch_private import verification


class Contract(Check):
    """A hook on the op's node sees the gradients before they are repaired."""

    name = "contract"
    code = "G01"
    group = "derivatives"
    is_quick = True
    purpose = "each gradient a backward returns has the shape, dtype, device and layout of its input"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """One finding per input that the op's node knows, then one for the number of gradients."""
        positions = differentiable_positions(target, sample)
        seen = _seen(target, sample, positions)
        if not seen:
            raise NothingToCheckError("no node of the graph is the op's own")
        names = [target.name_of(sample.leaves()[position]) for position in positions]
        for place, leaf, grad in seen:
            yield _judge(names[place], leaf, grad)
        yield from _extra(target, sample)


def _seen(target: Target, sample: Sample, positions: Sequence[int]) -> list[tuple[int, Tensor, Tensor]]:
    """Which input, itself, and the gradient that a node returns for it: every node just above the inputs."""
    tensors = [leaf.tensor.detach().clone() for leaf in sample.leaves()]
    able = [tensors[position].requires_grad_() for position in positions]
    written = target.written_places(sample)
    values = [x.clone() if place in written else x for place, x in enumerate(tensors)]
    outputs = [y for y in call_on(target.call, sample.with_tensors(values)) if y.grad_fn is not None]
    nodes = dict.fromkeys(y.grad_fn for y in outputs if y.grad_fn is not None)
    found: list[tuple[int, Tensor, Tensor]] = []
    with contextlib.ExitStack() as stack:
        for node in nodes:
            handle = node.register_hook(functools.partial(_keep, node, able, found))
            stack.callback(handle.remove)
        if outputs:
            torch.autograd.grad(outputs, able, signed_like(outputs), allow_unused=True)
    return found


def _keep(
    node: Node,
    able: Sequence[Tensor],
    found: list[tuple[int, Tensor, Tensor]],
    grads: Sequence[Tensor | None],
    _: object,
) -> None:
    """A hook: the gradients as the node returns them, for those of its inputs that are leaves."""
    for (child, _place), grad in zip(node.next_functions, grads, strict=False):
        variable = getattr(child, "variable", None)
        found += [(i, x, grad) for i, x in enumerate(able) if x is variable and grad is not None]


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


def _extra(target: Target, sample: Sample) -> Iterator[Finding]:
    """More gradients than inputs are dropped in silence, if they are None."""
    with verification.counted_gradients(target.subject) as (call, counts):
        if call is None:
            return
        gradients_for(replace(target, call=call), sample, is_ones=True)
    for found, expected in counts[:1]:
        text = f"the backward returns {found} gradients for {expected} arguments"
        yield PASSED if found == expected else failed(text, cause="an argument was removed, and its gradient was not")
