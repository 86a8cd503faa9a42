"""What a backward returns fits its inputs as it is, before the engine sums, casts or drops it in silence."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientError
from custom_autograd.schema.samples import Sample, TensorLeaf
from custom_autograd.torch_private import verification
from custom_autograd.values.validation import validation
from custom_autograd.verification.calls.call import call_of, differentiate
from custom_autograd.verification.harness.agreement import to_double
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    find_refusal,
    first_line,
    rule_behind,
)
from custom_autograd.verification.harness.causes import find_cause
from custom_autograd.verification.harness.comparison import widened
from custom_autograd.verification.harness.differentiable import can_have_gradient, differentiable_positions
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.targets import Target, call_on


class Contract(Check):
    """Gradients as the backward returns them; those of ops declared here are validated whenever a backward runs.

    A Function may return more Nones than there are arguments, as PyTorch documents, gradients that the engine sums to
    the shape of their input, or casts from the dtype of a result, and dense ones of sparse inputs; a backward of
    `register_autograd` returns what fits.
    """

    name = "contract"
    code = "G01"
    group = "derivatives"
    is_quick = True
    purpose = "a backward takes the samples; each gradient has the shape, dtype, device and layout of its input"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield one finding for their number, and one per tensor: all inputs together, each alone, in float64."""
        is_ours = record_of(target) is not None
        try:
            differentiate(target, call_of(target, sample))
        except Exception as error:
            rule = rule_behind(error)
            is_told = isinstance(error, GradientError) and error.op is not None  # it names everything itself
            if rule is not None and not is_told:
                yield failed(f"forward and backward raise {first_line(error)} ({rule})", cause=RAISES)
                return
            if is_ours:
                raise  # a GradientError of this package is the finding; a refusal is none
        if is_ours:
            yield _look_at_all(target, sample)
            yield from _in_double(target, sample, _run)
            return
        for variant in _variants(target, sample):
            yield from _check(target, variant)
        yield from _in_double(target, sample, _check)


RAISES = "what is registered takes every sample of its op: correct the rule, or take it away, and the op says so"


def _look_at_all(target: Target, sample: Sample) -> Finding:
    """Run the backward of an op declared here in full validation: gradients of what can have none are refused there."""
    try:
        with validation("full"):
            differentiate(target, call_of(target, sample))
    except GradientError as error:
        return failed(first_line(error), cause="what is None in a call, an integer or a bool has no gradient")
    except Exception:  # noqa: BLE001 - it is what other checks report, of kernels that are watched
        return PASSED
    return PASSED


def _variants(target: Target, sample: Sample) -> Iterator[Sample]:
    """Yield the sample with every gradient, and with one at a time."""
    positions = differentiable_positions(target, sample)
    for chosen in [positions, *((position,) for position in positions if len(positions) > 1)]:
        tensors = [x.detach().requires_grad_(position in chosen) for position, x in enumerate(sample.tensors())]
        yield sample.with_tensors(tensors)


def _in_double(
    target: Target, sample: Sample, look: Callable[[Target, Sample], Iterable[Finding]]
) -> Iterator[Finding]:
    """Look at the sample, whose own backward has ended, in float64, if the forward takes it."""
    wide = sample.map(lambda x: to_double(x.detach()).requires_grad_(x.requires_grad))
    try:
        call_on(target.call, wide.map(lambda x: x.detach().clone()))
    except Exception:  # noqa: BLE001 - an op may refuse a dtype in any words
        return
    try:
        yield from look(target, wide)
    except GradientError:
        return  # checks of derivatives are in float64, and raise it as well
    except Exception as error:
        if find_refusal(error) is not None or isinstance(error, NothingToCheckError):
            raise
        text = f"in float64, which the forward takes, the backward raises {first_line(error)}"
        yield failed(
            text, cause="the backward knows fewer dtypes than the forward; let both refuse float64, or neither"
        )


def _run(target: Target, sample: Sample) -> tuple[()]:
    """Run forward and backward, of which only what they raise is a finding."""
    differentiate(target, call_of(target, sample))
    return ()


def _check(target: Target, sample: Sample) -> Iterator[Finding]:
    values = [x.detach().clone().requires_grad_(x.requires_grad) for x in sample.tensors()]
    outputs = call_on(target.call, sample.with_tensors(values))
    nodes = [y.grad_fn for y in outputs if y.grad_fn is not None]
    if not nodes:
        raise NothingToCheckError("no output carries a gradient")
    with verification.watched_backward(target.subject, nodes[0]) as (is_watched, seen):
        if not is_watched:
            raise NothingToCheckError("its backward cannot be watched: it is not one of Python's")
        try:
            differentiate(target, call_of(target, sample))
        except RuntimeError as error:
            if not seen:
                raise
            count = _count(seen[0])
            refused = failed(f"the engine refuses what the backward returns: {first_line(error)}")
            yield count if count.status == "failed" else refused
            return
    is_of_library = isinstance(target.subject, verification.Definition)
    for returned in seen[:1]:
        yield _count(returned if is_of_library else _without_surplus(returned))
        for leaf in () if target.is_composed else sample.leaves():  # its arguments need not be those of the node
            yield from _judge_leaf(target, leaf, returned, () if is_of_library else outputs)


def _count(returned: verification.Returned) -> Finding:
    """Compare the number of gradients with that of arguments."""
    found, expected = len(returned.grads), returned.arguments
    if found == expected:
        return PASSED
    text = f"the backward returns {found} gradient{'s' * (found != 1)} for {expected} argument{'s' * (expected != 1)}"
    cause = "a gradient is missing" if found < expected else "an argument was removed, and its gradient was not"
    return failed(text, cause=cause)


def _without_surplus(returned: verification.Returned) -> verification.Returned:
    """Return the gradients without those beyond the arguments that are None."""
    surplus = returned.grads[returned.arguments :]
    is_none = all(grad is None for grad in surplus)
    return replace(returned, grads=returned.grads[: returned.arguments]) if is_none else returned


def _judge_leaf(
    target: Target, leaf: TensorLeaf, returned: verification.Returned, outputs: Sequence[Tensor]
) -> Iterator[Finding]:
    names = [argument.name for argument in target.arguments]
    position = leaf.argument if isinstance(leaf.argument, int) else names.index(leaf.argument)
    grad = returned.grads[position] if position < len(returned.grads) else None
    if leaf.path and not isinstance(grad, (list, tuple)):
        return  # a node takes the tensors of a list one by one, and its gradients have other positions
    if isinstance(grad, (list, tuple)):
        index = int(leaf.path.strip("[]"))
        grad = grad[index] if index < len(grad) else None
    if not isinstance(grad, Tensor):
        return
    if not can_have_gradient(leaf.tensor):
        text = f"the backward returns a gradient of '{target.name_of(leaf)}', which holds {leaf.tensor.dtype}"
        yield failed(f"{text}: the engine drops it", cause="integers and bools have no gradient: return None")
    elif leaf.tensor.requires_grad:
        yield _judge(target.name_of(leaf), leaf.tensor, _repaired(grad, leaf.tensor, outputs) if outputs else grad)


def _repaired(grad: Tensor, leaf: Tensor, outputs: Sequence[Tensor]) -> Tensor:
    """Return a gradient summed to the shape of its input, and cast from the dtype of a result, as the engine does.

    It takes a dense gradient of a sparse input, and no sparse one of a dense input.
    """
    with contextlib.suppress(RuntimeError):
        if grad.layout == torch.strided and torch.broadcast_shapes(grad.shape, leaf.shape) == grad.shape:
            grad = grad.sum_to_size(leaf.shape)
    if grad.layout == torch.strided and leaf.layout != torch.strided:
        grad = grad.to_sparse(layout=leaf.layout)
    return grad.to(leaf.dtype) if any(grad.dtype == y.dtype for y in outputs) else grad


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
