"""Under autocast, and for inputs of two dtypes, the fake gives the dtypes of the kernel, and the op's own policy holds.

policy       `register_autocast` was called: the call is that without autocast, inputs and outputs cast as it declares
no policy    the call is that without autocast, up to the dtypes in which the ops inside the kernel then run;
             skipped, with advice, if the op has policies for other device types: the author means casts, or none
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from custom_autograd.capabilities.autocast import AutocastRule, policies_of
from custom_autograd.core.errors import GradientError
from custom_autograd.registration.policy_types import Cast, CastPolicy
from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private import verification
from custom_autograd.values.random_state import kept_random_state
from custom_autograd.verification.calls.call import (
    Call,
    Outcome,
    begin,
    call_as_given,
    cotangents_of,
    find_change,
    run,
)
from custom_autograd.verification.calls.judge import results_of
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
from custom_autograd.verification.harness.comparison import find_difference, judged
from custom_autograd.verification.harness.differentiable import able_positions, without_refused_gradients
from custom_autograd.verification.harness.dispatching import device_type_of
from custom_autograd.verification.harness.records import output_names, outputs_of, record_of
from custom_autograd.verification.harness.slices import values_of
from custom_autograd.verification.harness.targets import Function, Target, call_on
from custom_autograd.verification.harness.tracing import why_not_own_op

LOW = torch.bfloat16

ADVICE = "no sample mixes dtypes, so this is advice"


class Autocast(Check):
    """torch.autocast of bfloat16 on the device of the sample, and float32 mixed with bfloat16 without it."""

    name = "autocast"
    code = "T04"
    group = "system"
    needs = ("fake",)
    most_samples = 2
    purpose = "under autocast and for mixed dtypes the fake gives the dtypes, and the op keeps to its policy"

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless the op is registered: under autocast a composition does what its parts do."""
        return why_not_own_op(target)

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Compare dtypes with the fake, values and gradients with the policy, then mixed dtypes."""
        device_type = device_type_of(sample)
        if not torch.amp.is_autocast_available(device_type):
            raise NothingToCheckError(f"torch has no autocast for {device_type}")
        single = sample.map(  # float64, which autocast leaves alone, becomes float32 as well
            lambda x: x.detach().to(torch.float32 if x.is_floating_point() else x.dtype).requires_grad_(x.requires_grad)
        )
        try:
            plain = _run(target, single)
        except Exception as error:
            if find_refusal(error) is not None:
                raise
            raise NothingToCheckError(f"the op does not take float32: {first_line(error)}") from error
        yield from _under_autocast(target, single, plain)
        for finding in _mixed(target, single):
            yield skipped(f"{ADVICE}: {finding.message}") if finding.status == "failed" else finding


def _run(target: Target, sample: Sample) -> Outcome:
    """Return one call, and its backward for an incoming gradient of 1.5, where one is asked, without autocast."""
    device_type = device_type_of(sample)
    with kept_random_state(), torch.autocast(device_type, enabled=False):
        sample, _ = without_refused_gradients(target, sample)
    call = call_as_given(sample).with_cotangent(lambda u: torch.full_like(u, 1.5))
    begun = begin(target, target.call, call)
    with torch.autocast(device_type, enabled=False):
        return {**begun.detached(), **begun.backward(cotangents_of(call, begun))}


def _under_autocast(target: Target, sample: Sample, plain: Outcome) -> Iterator[Finding]:
    """Compare a call under autocast with the fake, and with the policy unless the op lacks one for the device type."""
    device_type = device_type_of(sample)
    record = record_of(target)
    with_policy = [] if record is None else [policy.device_type for policy in policies_of(record)]
    if with_policy and device_type not in with_policy:
        reason = f"the op has an autocast policy for {' and '.join(with_policy)}, but not for {device_type}"
        yield skipped(reason, advice=f"{reason}: call register_autocast({device_type!r}, ...)")
        return
    with torch.autocast(device_type, LOW):
        found = _run(target, sample.map(Tensor.detach))
    outputs = [found[name] for name in results_of(found)]
    finding = _against_fake(target, sample, outputs, "under autocast", is_autocast=True)
    yield finding
    if finding.status != "failed":
        with torch.autocast(device_type, LOW):
            found = _run(target, sample)
        yield from _against_policy(target, sample, plain, found)


def _against_fake(
    target: Target, sample: Sample, outputs: Sequence[Tensor], label: str, *, is_autocast: bool
) -> Finding:
    """Compare the dtypes of the fake's outputs with those of the kernel's."""
    try:
        with (
            verification.fake_mode() as to_fake,
            torch.no_grad(),
            torch.autocast(device_type_of(sample), LOW, enabled=is_autocast),
        ):
            said = call_on(target.call, sample.map(lambda tensor: to_fake(tensor.detach())))
    except Exception as error:  # noqa: BLE001 - whatever a fake raises where the kernel does not is what there is to report
        refusal = find_refusal(error)
        if refusal is not None:
            return skipped(refusal)
        message = f"{label} the fake raises {first_line(error)}, and the kernel does not"
        return failed(message, cause=CAUSE) if is_autocast else skipped(message)
    for name, one, other in zip(output_names(target, len(outputs)), said, outputs, strict=False):
        if one.dtype != other.dtype:
            message = f"{label} the fake gives {one.dtype} for {name}, the kernel returns {other.dtype}"
            return failed(message, cause=CAUSE)
    return PASSED


def _against_policy(target: Target, sample: Sample, plain: Outcome, found: Outcome) -> Iterator[Finding]:
    record = record_of(target)
    rule = None if record is None else record.registrations.get(AutocastRule, device_type_of(sample))
    if record is None or rule is None:
        yield _roughly(found, plain)
        return
    policy = rule.policy
    with torch.autocast(device_type_of(sample), LOW, enabled=False):  # "lower" is float16 on most devices
        expected = _run(replace(target, call=cast_by_hand(target, record, policy)), sample)
    label = f"under autocast, not what casts by hand give, as the policy {policy.text} says"
    yield judged(find_change(found, expected), f"{label}: {{}}", cause="the policy is not applied")


def _roughly(found: Outcome, expected: Outcome) -> Finding:
    """Fail where most numbers are off and by much, which neither rounding nor one jump at a threshold explains."""
    for name in results_of(expected):
        one, other = found[name], expected[name]
        if one.shape != other.shape or not other.is_floating_point() or other.numel() == 0:
            continue
        error, size = (one.double() - other.double()).nan_to_num(), other.double().nan_to_num()
        is_large = float(error.norm()) > 0.3 * float(size.norm())
        if is_large and float((error.abs() > 0.05 * size.abs()).double().mean()) > 0.5:
            difference = find_difference([one.to(other.dtype)], [other], names=[name])
            return failed(
                f"under autocast most of the values change: {difference} without",
                cause="what is registered for autocast computes something else",
            )
    return PASSED


def _mixed(target: Target, sample: Sample) -> Iterator[Finding]:
    """Yield floating tensors in float32 and bfloat16 by turns; what the op refuses is not looked at."""
    positions = [position for position, x in enumerate(sample.tensors()) if x.is_floating_point()]
    if len(positions) < 2:
        return
    for label, low in (("first", positions[::2]), ("second", positions[1::2])):
        values = [x.detach().to(LOW) if i in low else x.detach() for i, x in enumerate(sample.tensors())]
        mixed = sample.with_tensors(values)
        try:
            with torch.no_grad():
                outputs = call_on(target.call, mixed.map(Tensor.clone))
        except Exception as error:  # noqa: BLE001 - an op may refuse mixed dtypes in any words
            yield skipped(f"the op does not take float32 together with bfloat16: {first_line(error)}")
            return
        which = f"with bfloat16 for the {label} of every two tensors,"
        yield _against_fake(target, mixed, outputs, which, is_autocast=False)
        yield _backward_of_mixed(target, mixed, which)


def _backward_of_mixed(target: Target, mixed: Sample, which: str) -> Finding:
    """Fail a backward that returns a gradient in another dtype than its input: what is raised then ends a training."""
    try:
        run(target, target.call, Call(mixed, frozenset(able_positions(target, mixed))))
    except Exception as error:  # noqa: BLE001 - derivatives have checks of their own
        if isinstance(error, GradientError):
            return failed(f"{which} the backward raises {first_line(error)}")
    return PASSED


CAUSE = "ops inside the kernel cast what the fake does not: register_autocast, or promote the dtypes in the fake"


def cast_by_hand(target: Target, record: OpRecord, policy: CastPolicy) -> Function:
    """Return the call without autocast, between the casts that autocast should make; written without dispatch keys."""

    def call(*args: object, **kwargs: object) -> object:
        sample = Sample(*args, **kwargs)
        tensors = sample.tensors()
        named = [(name, x) for name, value in values_of(record, sample).items() for x in Sample(value).tensors()]
        names = {id(x): name for name, x in named}
        wanted = [policy.arguments.get(names[id(x)], "keep") for x in tensors]
        promoting = (x for x, cast in zip(tensors, wanted, strict=True) if cast == "promote")
        widest = policy.promoted(x.dtype for x in promoting if policy.is_castable(x))
        casts = [_to(x, policy, cast, widest) for x, cast in zip(tensors, wanted, strict=True)]
        results = call_on(target.call, sample.with_tensors(casts))
        before = next((x.dtype for _, x in named if x.is_floating_point()), None)
        found = outputs_of(record.declaration.schema.outputs, len(results))
        wanted = [policy.outputs.get(output.name, "keep") for output, _ in found] or ["keep"] * len(results)
        return [_to(y, policy, cast, before) for y, cast in zip(results, wanted, strict=True)]

    return call


def _to(tensor: Tensor, policy: CastPolicy, wanted: Cast, other: torch.dtype | None) -> Tensor:
    """Return a tensor, cast as one entry of a policy says."""
    dtype = policy.dtype_of(wanted, other)
    return tensor if dtype is None or not policy.is_castable(tensor) else tensor.to(dtype)
