"""Under autocast, and for inputs of two dtypes, the fake says what the kernel gives, and the op's own policy holds.

policy       `register_autocast` was called: the call is that without autocast, inputs and outputs cast as it says
no policy    the call is that without autocast, up to the dtypes in which the ops inside the kernel then run
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from custom_autograd.calls.bind import gather
from custom_autograd.core.casting import Cast, CastPolicy
from custom_autograd.core.samples import Sample
from custom_autograd.core.schema import Schema
from custom_autograd.pytrees.argument_tree import ArgumentTree
from custom_autograd.pytrees.op_adapter import adapter_of
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private import verification
from custom_autograd.values.random_state import kept_random_state
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
from custom_autograd.verification.harness.differentiable import without_refused_gradients
from custom_autograd.verification.harness.dispatching import device_type_of
from custom_autograd.verification.harness.passes import why_not_own_op
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.targets import Function, Target, call_on

LOW = torch.bfloat16

ADVICE = "no sample mixes dtypes, so this is advice"

Arguments: TypeAlias = Sequence[object]
ByName: TypeAlias = dict[str, Any]  # Any: arguments of any type
Calls: TypeAlias = tuple[
    Callable[[Schema, Arguments, ByName], ByName],
    Callable[[Schema, ByName, Arguments, ByName], tuple[Arguments, ByName]],
    Callable[[object], object],
]
"""A call -> its arguments by the names of the schema; other values of those -> a call; a result -> the flat one."""


class Autocast(Check):
    """torch.autocast of bfloat16 on the device of the sample, and float32 mixed with bfloat16 without it."""

    name = "autocast"
    code = "T04"
    group = "system"
    needs = ("fake",)
    most_samples = 2
    purpose = "under autocast and for mixed dtypes the fake tells the dtypes, and the op keeps to its policy"

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless the op is registered: under autocast a composition does what its parts do."""
        return why_not_own_op(target)

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Compare dtypes with the fake, values and gradients with the policy, then mixed dtypes."""
        device_type = device_type_of(sample)
        if not torch.amp.is_autocast_available(device_type):
            raise NothingToCheckError(f"torch has no autocast for {device_type}")
        single = _in_single(sample)
        try:
            plain = _run(target, single)
        except Exception as error:
            if find_refusal(error) is not None:
                raise
            raise NothingToCheckError(f"the op does not take float32: {first_line(error)}") from error
        with torch.autocast(device_type, LOW):
            outputs = _run(target, single.map(Tensor.detach)).outputs
        finding = _against_fake(target, single, outputs, "under autocast", is_autocast=True)
        yield finding
        if finding.status == "failed":
            return
        with torch.autocast(device_type, LOW):
            found = _run(target, single)
        yield from _against_policy(target, single, plain, found)
        for finding in _mixed(target, single):
            yield skipped(f"{ADVICE}: {finding.message}") if finding.status == "failed" else finding


@dataclass(frozen=True, slots=True)
class Results:
    """The outputs of one call, and the gradients by the name of their input."""

    outputs: tuple[Tensor, ...]
    grads: tuple[tuple[str, Tensor], ...]


def _in_single(sample: Sample) -> Sample:
    """Return the sample in float32; float64, which autocast leaves alone, becomes float32 as well."""
    return sample.map(
        lambda x: x.detach().to(torch.float32 if x.is_floating_point() else x.dtype).requires_grad_(x.requires_grad)
    )


def _run(target: Target, sample: Sample) -> Results:
    """Return one call on copies, and its backward for an incoming gradient of 1.5, where one is asked."""
    with kept_random_state(), torch.autocast(device_type_of(sample), enabled=False):
        sample, _ = without_refused_gradients(target, sample)
    leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in sample.tensors()]
    positions = target.written_positions(sample)
    values = [x.clone() if position in positions else x for position, x in enumerate(leaves)]
    with kept_random_state():
        outputs = call_on(target.call, sample.with_tensors(values))
    outputs += tuple(x for position, x in enumerate(values) if position in positions)
    able = [y for y in outputs if y.requires_grad]
    wanted = [(target.name_of(leaf), x) for leaf, x in zip(sample.leaves(), leaves, strict=True) if x.requires_grad]
    if not able or not wanted:
        return Results(tuple(y.detach() for y in outputs), ())
    with kept_random_state(), torch.autocast(device_type_of(sample), enabled=False):
        grads = torch.autograd.grad(
            able, [x for _, x in wanted], [torch.full_like(y, 1.5) for y in able], allow_unused=True
        )
    named = [(name, g) for (name, _), g in zip(wanted, grads, strict=True) if g is not None]
    return Results(tuple(y.detach() for y in outputs), tuple(named))


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
    for position, (one, other) in enumerate(zip(said, outputs, strict=False)):
        if one.dtype != other.dtype:
            message = f"{label} the fake says {one.dtype} for output {position}, the kernel returns {other.dtype}"
            return failed(message, cause=CAUSE)
    return PASSED


def _against_policy(target: Target, sample: Sample, plain: Results, found: Results) -> Iterator[Finding]:
    record = record_of(target)
    rule = None if record is None else record.registrations.autocast.get(device_type_of(sample))
    if record is None or rule is None:
        yield _roughly(found.outputs, plain.outputs)
        return
    policy = rule.policy
    with torch.autocast(device_type_of(sample), LOW, enabled=False):  # "lower" is float16 on most devices
        expected = _run(replace(target, call=_cast_by_hand(target, record, policy)), sample)
    label = f"under autocast, not what casts by hand give, as the policy {policy.text} says"
    difference = find_difference(found.outputs, expected.outputs) or find_difference(
        [g for _, g in found.grads],
        [g for _, g in expected.grads],
        names=[f"the gradient of '{name}'" for name, _ in expected.grads],
    )
    yield PASSED if difference is None else failed(f"{label}: {difference}", cause="the policy is not applied")


def _cast_by_hand(target: Target, record: OpRecord, policy: CastPolicy) -> Function:
    """Return the call without autocast, between the casts that autocast should make; written without dispatch keys."""
    schema, adapter = record.declaration.schema, adapter_of(record.declaration)
    outputs = [output.name for output in schema.visible_outputs]
    flat: Calls = (_read, _write, _take)
    read, write, take = adapter.around(flat, _containers)

    def call(*args: object, **kwargs: object) -> object:
        given = read(schema, args, kwargs)
        first = [x.dtype for name in schema.argument_names for x in _floating(given.get(name))]
        promoting = [
            x for name in given for x in Sample(given[name]).tensors() if policy.arguments.get(name) == "promote"
        ]
        widest = policy.promoted(x.dtype for x in promoting if policy.is_castable(x))
        values = {name: _to(given[name], policy, policy.arguments.get(name, "keep"), widest) for name in given}
        positional, keywords = write(schema, values, args, kwargs)
        found = take(target.call(*positional, **keywords))
        results = [found] if len(outputs) == 1 else cast(Sequence[object], found or ())
        before = next(iter(first), None)
        return [
            _to(value, policy, policy.outputs.get(name, "keep"), before)
            for name, value in zip(outputs, results, strict=True)
        ]

    return call


def _read(schema: Schema, args: Arguments, kwargs: ByName) -> ByName:
    """Return the arguments of a call by the names of the schema."""
    return {**dict(gather(schema, args)), **kwargs}


def _write(schema: Schema, values: ByName, args: Arguments, kwargs: ByName) -> tuple[Arguments, ByName]:
    """Return the same call with other values."""
    positional = [one for name, _ in gather(schema, args) for one in _spread(schema, name, values[name])]
    return positional, {name: values[name] for name in kwargs}


def _take(result: object) -> object:
    """Return what a call returned, as the schema has it."""
    return result


def _containers(tree: ArgumentTree, _: Calls) -> Calls:
    """Return the three for an op with containers."""

    def read(schema: Schema, args: Arguments, kwargs: ByName) -> ByName:
        positional, keywords = tree.flat_call(*args, **kwargs)
        return {**dict(zip(schema.argument_names, positional, strict=False)), **keywords}

    def write(schema: Schema, values: ByName, args: Arguments, kwargs: ByName) -> tuple[Arguments, ByName]:
        return tree.arguments(values)

    return read, write, functools.partial(_take_containers, tree)


def _spread(schema: Schema, name: str, value: object) -> Sequence[object]:
    return cast(Sequence[object], value) if schema.argument(name).is_variadic else [value]


def _floating(value: object) -> list[Tensor]:
    return [x for x in Sample(value).tensors() if x.is_floating_point()]


def _take_containers(tree: ArgumentTree, result: object) -> object:
    results = tree.results
    if results is None:
        return result
    if not results.hidden:
        taken: object = results.take(result)
        return taken
    items = (result,) if len(results.visible) == 1 else cast(Sequence[object], result)
    found = [one for node, item in zip(results.visible, items, strict=True) for one in node.take(item)]
    return found if len(found) != 1 else found[0]


def _to(value: object, policy: CastPolicy, wanted: Cast, other: torch.dtype | None) -> object:
    """Return a tensor, or all in a container, cast as one entry of a policy says."""
    dtype = policy.dtype_of(wanted, other)
    return Sample(value).map(lambda x: x if dtype is None or not policy.is_castable(x) else x.to(dtype)).args[0]


def _roughly(found: Sequence[Tensor], expected: Sequence[Tensor]) -> Finding:
    """Fail where most numbers are off and by much, which neither rounding nor one jump at a threshold explains."""
    for position, (one, other) in enumerate(zip(found, expected, strict=False)):
        if one.shape != other.shape or not other.is_floating_point() or other.numel() == 0:
            continue
        error, size = (one.double() - other.double()).nan_to_num(), other.double().nan_to_num()
        is_large = float(error.norm()) > 0.3 * float(size.norm())
        if is_large and float((error.abs() > 0.05 * size.abs()).double().mean()) > 0.5:
            difference = find_difference([one.to(other.dtype)], [other], names=[f"output {position}"])
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
            yield skipped(f"the op does not take float32 beside bfloat16: {first_line(error)}")
            return
        yield _against_fake(
            target, mixed, outputs, f"with bfloat16 for the {label} of every two tensors,", is_autocast=False
        )


CAUSE = "ops inside the kernel cast what the fake does not: register_autocast, or promote the dtypes in the fake"
