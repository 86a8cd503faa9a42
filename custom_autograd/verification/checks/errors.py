"""The inputs that samples declare to be bad raise what they declare, and nothing else.

Looks at the samples of `Sample(...).raises(...)` only; fake tensors have no data, so that an error about values does
not come from them: what they do instead is reported and is not a failure.
"""

import re
from collections.abc import Iterable

import torch

from custom_autograd.core.errors import GradientError
from custom_autograd.schema.samples import ExpectedError, Sample
from custom_autograd.torch_private import verification
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    first_line,
    skipped,
)
from custom_autograd.verification.harness.dispatching import device_type_of
from custom_autograd.verification.harness.sweeps import copy
from custom_autograd.verification.harness.targets import Target, call_on


class Errors(Check):
    """The class and the text of what a call on bad inputs raises."""

    name = "errors"
    code = "F13"
    group = "system"
    is_quick = True
    is_for_errors = True
    purpose = "the inputs declared to be bad raise the error declared, and no other"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding for the call, and what fake tensors do where that is something else."""
        expected = sample.error
        if expected is None:
            raise NothingToCheckError("the sample is not declared to raise")
        device_type = device_type_of(sample)
        if expected.device_types and device_type not in expected.device_types:
            where = " and ".join(expected.device_types)
            raise NothingToCheckError(f"it raises on {where} only, and its result on {device_type} is undefined")
        copies = sample.map(lambda x: x.detach().clone().requires_grad_(x.requires_grad))
        raised = _raised_by(target, copies)
        if isinstance(raised, GradientError):  # which the author does not ask for
            raised = _raised_by(target, copy(sample))
        difference = _find_difference(raised, expected)
        if difference is not None:
            yield failed(difference)
            return
        yield PASSED
        with verification.fake_mode() as to_fake:
            raised = _raised_by(target, sample.map(lambda tensor: to_fake(tensor.detach())))
        difference = _find_difference(raised, expected)
        if difference is not None:
            yield skipped(f"fake tensors do not show the error: {difference}")


def _raised_by(target: Target, sample: Sample) -> Exception | None:
    try:
        with torch.enable_grad():
            call_on(target.call, sample)
    except Exception as error:  # noqa: BLE001 - whatever is raised is what there is to compare
        return error
    return None


def _find_difference(raised: Exception | None, expected: ExpectedError) -> str | None:
    """Return what was expected and what was found, or None if they agree."""
    text = f" that contains '{expected.match}'" if expected.match else ""
    wanted = f"expected {expected.type.__name__}{text}, found"
    if raised is None:
        return f"{wanted} no error"
    if not isinstance(raised, expected.type) or not re.search(expected.match, str(raised)):
        return f"{wanted} {first_line(raised)}"
    return None
