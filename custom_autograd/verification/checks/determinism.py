"""Equal calls give equal results: random numbers are declared and come from torch, nothing is remembered."""

import random
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import RandomState, kept_random_state
from custom_autograd.verification.harness.agreement import values_of
from custom_autograd.verification.harness.base import PASSED, Check, Finding, NothingToCheckError, failed
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.differentiable import copies, function_of, signed_like, vector_jacobian
from custom_autograd.verification.harness.records import result_names
from custom_autograd.verification.harness.targets import Target

ROUNDS = 3


class Determinism(Check):
    """The same call repeated, after another call in between, with grad mode on, off and in inference mode."""

    name = "determinism"
    code = "F05"
    group = "values"
    is_quick = True
    purpose = "equal calls give equal results, in every grad mode; random numbers are declared"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding for randomness, one for memory of earlier calls, one for grad modes."""
        state = RandomState.current()
        first = _call(target, sample, state)
        is_drawing = state.has_moved()
        if is_drawing and target.overload is not None and torch.Tag.nondeterministic_seeded not in target.overload.tags:
            yield failed(
                "it draws random numbers, which its schema does not say: a compiler may drop or merge its calls; "
                "declare it with tags=torch.Tag.nondeterministic_seeded"
            )
        names = result_names(target, sample, len(first))
        for _ in range(ROUNDS):
            difference = find_difference(_call(target, sample, state), first, names=names)
            if difference is not None:
                yield failed(
                    f"two equal calls differ: {difference}", cause="it is not deterministic, or it remembers a call"
                )
                return
        yield PASSED
        yield _after_another_call(target, sample, state, first)
        yield _gradients(target, sample)
        yield from _grad_modes(target, sample, state, first)


def _call(target: Target, sample: Sample, state: RandomState) -> tuple[Tensor, ...]:
    """Return the values, with every generator in the same state; torch's is given, Python's is reset."""
    state.restore()
    random.seed(0)
    with torch.no_grad():
        return values_of(target, target.full, sample)


def _after_another_call(target: Target, sample: Sample, state: RandomState, first: Sequence[Tensor]) -> Finding:
    other = sample.map(lambda x: x.detach() * 0.5 if x.is_floating_point() or x.is_complex() else x)
    kept = [tensor.clone() for tensor in first]
    _call(target, other, state)
    difference = find_difference(first, kept, names=result_names(target, sample, len(first)))
    if difference is not None:
        return failed(f"a later call changes the result of an earlier one: {difference}", cause="a buffer is reused")
    difference = find_difference(_call(target, sample, state), first, names=result_names(target, sample, len(first)))
    if difference is None:
        return PASSED
    return failed(f"it differs after a call with other values: {difference}", cause="it remembers earlier calls")


def _gradients(target: Target, sample: Sample) -> Finding:
    """Compare two runs of forward and backward."""
    try:
        function = function_of(target, sample)
        cotangents = signed_like(function(*function.inputs))
        with kept_random_state():
            first = vector_jacobian(function, function.inputs, copies(cotangents))
    except (NothingToCheckError, RuntimeError, TypeError):  # derivatives have checks of their own
        return PASSED
    names = [f"gradient of '{name}'" for name in function.names]
    for _ in range(ROUNDS):
        with kept_random_state(is_enabled=bool(target.surrogates)):  # which may be drawn
            found = vector_jacobian(function, function.inputs, copies(cotangents))
        difference = find_difference(found, first, names=names)
        if difference is not None:
            cause = "the backward is not deterministic, or it remembers earlier ones"
            return failed(f"two equal backwards differ: {difference}", cause=cause)
    return PASSED


def _grad_modes(target: Target, sample: Sample, state: RandomState, first: Sequence[Tensor]) -> Iterable[Finding]:
    for label, mode in (("grad mode is on", torch.enable_grad), ("inference mode is on", torch.inference_mode)):
        state.restore()
        random.seed(0)
        with mode():
            found = values_of(target, target.full, sample.map(Tensor.detach))
        difference = find_difference(found, first, names=result_names(target, sample, len(first)))
        message = f"where {label}: {difference} without it"
        yield PASSED if difference is None else failed(message, cause="it computes something else in that mode")
