"""PyTorch's own verification of an op's registration, torch.library.opcheck, with its known limits told apart."""

from collections.abc import Iterable

import torch

from custom_autograd.checks.base import PASSED, Check, Finding, failed, skipped
from custom_autograd.checks.targets import Target
from custom_autograd.core.samples import Sample


class Opcheck(Check):
    """Each of opcheck's tests is one finding."""

    name = "opcheck"
    code = "C03"
    purpose = "torch.library.opcheck passes, its static AOT test included"

    def applies_to(self, target: Target) -> str | None:
        """Opcheck knows only ops of the dispatcher."""
        return "opcheck needs an op of the dispatcher" if target.overload is None else None

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Each test by itself, so that one failure does not hide the next."""
        assert target.overload is not None
        for test in TESTS:
            limit = _limit(test, target, sample)
            if limit is not None:
                yield skipped(f"{test}: {limit}")
                continue
            copies = target.to_dispatcher(sample.map(lambda x: x.detach().clone().requires_grad_(x.requires_grad)))
            outcome = torch.library.opcheck(
                target.overload, copies.args, copies.kwargs, test_utils=test, raise_exception=False
            )
            yield _finding(test, outcome[test])


def _limit(test: str, target: Target, sample: Sample) -> str | None:
    """Why a test cannot look at this sample."""
    if not sample.tensors():
        return "opcheck needs a tensor among the arguments"
    needs_grad = any(leaf.tensor.requires_grad and target.argument_of(leaf).is_mutated for leaf in sample.leaves())
    if needs_grad and test.startswith("test_aot"):
        return "opcheck cannot write to a leaf that requires grad"
    return None


def _finding(test: str, outcome: object) -> Finding:
    if isinstance(outcome, NotImplementedError):
        return skipped(f"{test}: {outcome}")
    if outcome == "SUCCESS":
        return PASSED
    text = str(outcome).strip()
    if any(limit in text for limit in LIMITS):
        return skipped(f"{test}: {text.splitlines()[0]}")
    return failed(f"{test}: {_cut(text)}")


def _cut(text: str) -> str:
    """The first lines; opcheck repeats its advice at length."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[:6])


TESTS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_static",
    "test_aot_dispatch_dynamic",
)

LIMITS = (
    "a leaf Variable that requires grad is being used in an in-place operation",
    "autograd_registration_check: NYI",
    "we only support",
)
"""Texts by which opcheck says that a sample is beyond it."""
