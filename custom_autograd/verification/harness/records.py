"""Facts of the registry that a check needs of a target: how it was made, and the names of its results."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from custom_autograd.registration import registry
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import FakeRule
from custom_autograd.schema.samples import Sample
from custom_autograd.schema.schema import Output
from custom_autograd.verification.harness.base import Finding, skipped
from custom_autograd.verification.harness.dispatching import key_of_kernel, label_of_kernel
from custom_autograd.verification.harness.targets import Target


def record_of(target: Target) -> OpRecord | None:
    """Return the op record of a target; None for what `custom_op` did not declare."""
    return registry.record_of(target.subject)


def has_derived_fake(target: Target) -> bool:
    """Return True if the reference replaces a fake kernel, because none is registered."""
    record = record_of(target)
    return record is not None and record.registrations.get(FakeRule) is None and record.reference() is not None


def is_built(target: Target) -> bool:
    """Return True if a kernel or a rule of the target is made at its first call."""
    return any(hasattr(function, "unavailable_because") for _, function in _functions(target))


def reasons_of_unavailable(target: Target) -> Mapping[str, str]:
    """Return why kernels and rules could not be built or were passed over, by key or title, as far as is known."""
    record = record_of(target)
    passed_over = {} if record is None else record.kernels.passed_over
    found = {key_of_kernel(kernel): reason for kernel, reason in passed_over.items()}
    # kernels/ lies above checks/, so that a kernel that is made at its first call is told by what it says of itself
    return found | {
        name: function.unavailable_because
        for name, function in _functions(target)
        if getattr(function, "unavailable_because", "")
    }


def _functions(target: Target) -> list[tuple[str, Any]]:  # Any: kernels and rules
    record = record_of(target)
    if record is None:
        return []
    rules = [(rule.title, function) for rule in record.registrations.all() for function in rule.functions]
    return [*((key_of_kernel(kernel), kernel.given) for kernel in record.kernels.all()), *rules]


def unless_replaced(finding: Finding, target: Target, key: str) -> Finding:
    """Return the finding of a kernel, or a skip if its fallback ran instead.

    Where its fallback ran, that this one is right says nothing.
    """
    record = record_of(target)
    kernels = () if record is None else tuple(record.kernels.all())
    given = [kernel.given for kernel in kernels if key_of_kernel(kernel) == key]
    is_replaced = any(getattr(function, "is_replaced", False) for function in given)
    if finding.status != "passed" or not is_replaced:
        return finding
    text = f"{label_of_kernel(key)} could not be made, and its fallback ran in its place"
    return skipped(text, advice=text)


def output_names(target: Target, count: int) -> list[str]:
    """Return the names of the tensors that a call returns: 'scale'; "output 1" where the author gave no names.

    Args:
        target: what is called.
        count: how many tensors came back; hidden outputs are among them or not.
    """
    record = record_of(target)
    outputs = () if record is None else record.declaration.schema.outputs
    found, names = outputs_of(outputs, count), [output.name for output in outputs]
    if len(found) != count:
        return [f"output {position}" for position in range(count)]
    labels = [f"output {names.index(one.name)}" if UNNAMED.fullmatch(one.name) else f"'{one.name}'" for one, _ in found]
    return [f"{label}{place}" for label, (_, place) in zip(labels, found, strict=True)]


def outputs_of(outputs: Sequence[Output], count: int) -> list[tuple[Output, str]]:
    """Return the output that each of so many tensors is, and its place in a list, "[0]"; none if that is unknown.

    An optional output may be absent; beside a list, the number of tensors does not say whether it is.
    """
    whole = [output for output in outputs if "Tensor" in output.type]
    present = [output for output in whole if output.type != "Tensor?"]
    if present != whole and any(output.is_tensor_list for output in whole):
        return []
    for rows in (whole, present):
        for chosen in (rows, [output for output in rows if not output.is_hidden]):
            found = _spread(chosen, count)
            if len(found) == count:
                return found
    return []


def _spread(outputs: Sequence[Output], count: int) -> list[tuple[Output, str]]:
    """Return the outputs, the list among them once for each of its tensors."""
    lists = [output for output in outputs if output.is_tensor_list]
    if len(lists) != 1:
        return [(output, "") for output in outputs]
    places = [f"[{i}]" for i in range(count - len(outputs) + 1)]
    return [(output, place) for output in outputs for place in (places if output in lists else [""])]


def result_names(target: Target, sample: Sample, count: int) -> list[str]:
    """Return the names of the tensors that a call returns, then of the inputs that it writes to."""
    leaves = sample.leaves()
    written = [f"written '{target.name_of(leaves[position])}'" for position in sorted(target.written_positions(sample))]
    return [*output_names(target, count - len(written)), *written]


UNNAMED = re.compile(r"output(_\d+)?_*")
"""The names that a declaration gives to outputs without one."""
