"""PyTorch's own verification of an op's registration, torch.library.opcheck, with its known limits distinguished."""

from collections.abc import Iterable

import torch

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    find_refusal,
    skipped,
)
from custom_autograd.verification.harness.differentiable import without_refused_gradients
from custom_autograd.verification.harness.dispatching import has_generator
from custom_autograd.verification.harness.passes import SPARSE
from custom_autograd.verification.harness.targets import Target


class Opcheck(Check):
    """Each of opcheck's tests is one finding."""

    name = "opcheck"
    code = "C03"
    group = "system"
    most_samples = 2
    purpose = "torch.library.opcheck passes, its static AOT test included"

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless it is an op of the dispatcher: opcheck takes no other."""
        return "opcheck needs an op of the dispatcher" if target.overload is None else None

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Run each test by itself, so that one failure does not hide the next."""
        assert target.overload is not None
        if not sample.tensors():
            raise NothingToCheckError("opcheck needs a tensor among the arguments")
        sample, refusal = without_refused_gradients(target, sample)
        if refusal is not None:
            yield skipped(refusal)
        is_drawing = has_generator(sample)
        if is_drawing:
            yield skipped("test_aot_dispatch_*: each of opcheck's calls would draw something else from the generator")
        for test in TESTS[:3] if is_drawing else TESTS:
            call = target.to_dispatcher(_copied(target, sample))
            outcome = torch.library.opcheck(
                target.overload, call.args, call.kwargs, test_utils=test, raise_exception=False
            )
            yield _finding(test, outcome[test])


def _copied(target: Target, sample: Sample) -> Sample:
    """Copy of the tensors; what is written to does not require grad, because opcheck cannot write to such leaves."""
    copies = sample.map(lambda x: x.detach().clone().requires_grad_(x.requires_grad))
    for leaf in copies.leaves():
        if target.argument_of(leaf).is_mutated:
            leaf.tensor.requires_grad_(False)
    return copies


def _finding(test: str, outcome: object) -> Finding:
    if outcome == "SUCCESS":
        return PASSED
    if type(outcome).__name__ in DATA_DEPENDENT:
        return skipped(f"{test}: the size of its results depends on the data")
    if any(phrase in str(outcome) for phrase in SPARSE):
        return skipped(f"{test}: torch compiles no sparse tensor")
    refusal = find_refusal(outcome) if isinstance(outcome, BaseException) else None
    return failed(f"{test}: {_cut(str(outcome).strip())}") if refusal is None else skipped(f"{test}: {refusal}")


def _cut(text: str) -> str:
    """Return the first lines; opcheck repeats its advice at length."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[:6])


TESTS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_static",
    "test_aot_dispatch_dynamic",
)

DATA_DEPENDENT = ("DataDependentOutputException", "DynamicOutputShapeException")
"""How torch reports that static shapes cannot express a result; the classes have no public name."""
