"""One tensor given for two arguments: values and gradients are those of two equal tensors."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import kept_random_state
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    find_refusal,
    first_line,
)
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.differentiable import (
    can_have_gradient,
    differentiable_positions,
    signed_like,
    without_refused_gradients,
)
from custom_autograd.verification.harness.result_names import result_names
from custom_autograd.verification.harness.targets import Target, call_on

CAUSE = "a result is kept by the identity or the memory of an argument, or one gradient is taken for both"


class SharedInputs(Check):
    """Each pair of floating or complex tensors of one shape and dtype, of which the op writes to neither."""

    name = "shared_inputs"
    code = "F16"
    group = "values"
    is_quick = True
    most_samples = 2
    purpose = "the same tensor given twice, op(x, x), gives the values and gradients of two equal ones"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield one finding per pair."""
        sample = _with_gradients(target, sample)
        pairs = list(_pairs(target, sample))
        if not pairs:
            raise NothingToCheckError("no two floating tensors of the sample have one shape and dtype")
        for first, second in pairs:
            names = [target.name_of(sample.leaves()[position]) for position in (first, second)]
            yield _check(target, sample, first, second, f"'{names[0]}' and '{names[1]}'")


def _with_gradients(target: Target, sample: Sample) -> Sample:
    """Return the call with what can have a gradient requiring one, as far as the op has gradients.

    Raises:
        NothingToCheckError: a plain forward and backward raise, which is for other checks to tell.
    """
    try:
        positions = differentiable_positions(target, sample)
    except NothingToCheckError:
        return sample
    tensors = [x.detach().requires_grad_(position in positions) for position, x in enumerate(sample.tensors())]
    try:
        return without_refused_gradients(target, sample.with_tensors(tensors))[0]
    except Exception as error:
        raise NothingToCheckError(f"forward and backward raise {first_line(error)}") from error


def _pairs(target: Target, sample: Sample) -> Iterator[tuple[int, int]]:
    written, tensors = target.written_positions(sample), sample.tensors()
    for first, second in itertools.combinations(range(len(tensors)), 2):
        one, other = tensors[first], tensors[second]
        is_equal = one.shape == other.shape and one.dtype == other.dtype and one.layout == other.layout
        if is_equal and can_have_gradient(one) and one.numel() and not written & {first, second}:
            yield first, second


def _check(target: Target, sample: Sample, first: int, second: int, names: str) -> Finding:
    results: list[tuple[Tensor, ...]] = []
    cotangents: list[Tensor] = []
    for is_shared in (False, True):
        leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in sample.tensors()]
        leaves[first].requires_grad_(leaves[first].requires_grad or leaves[second].requires_grad)
        shared = leaves[first]
        leaves[second] = shared if is_shared else shared.detach().clone().requires_grad_(shared.requires_grad)
        try:
            results.append(_run(target, sample.with_tensors(leaves), leaves, shared, leaves[second], cotangents))
        except Exception as error:
            if not is_shared or find_refusal(error) is not None:
                raise NothingToCheckError(f"equal {names} are refused: {first_line(error)}") from error
            return failed(f"{names} are one tensor: it raises {first_line(error)}; it does not for two equal ones")
    results_named = [*result_names(target, sample, len(results[0]) - bool(cotangents)), "the gradient"]
    difference = find_difference(results[1], results[0], names=results_named, factor=10.0)
    if difference is None:
        return PASSED
    return failed(f"{names} are one tensor: {difference} for two equal ones", cause=CAUSE)


def _run(
    target: Target, sample: Sample, leaves: Sequence[Tensor], one: Tensor, other: Tensor, cotangents: list[Tensor]
) -> tuple[Tensor, ...]:
    """Return the results, and the gradient of what the two arguments have in common."""
    written = target.written_positions(sample)
    values = [x.clone() if position in written else x for position, x in enumerate(leaves)]
    with kept_random_state():
        outputs = call_on(target.call, sample.with_tensors(values))
    found = tuple(y.detach() for y in (*outputs, *(values[position] for position in sorted(written))))
    able = [y for y in outputs if y.requires_grad]
    if not one.requires_grad or not able:
        return found
    cotangents[:] = cotangents or signed_like(able)
    inputs = [one] if one is other else [one, other]
    grads = torch.autograd.grad(able, inputs, cotangents, allow_unused=True)
    known = [grad for grad in grads if grad is not None]
    return (*found, sum(known[1:], known[0])) if known else found
