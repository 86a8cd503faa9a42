"""For other people's test suites: one pytest test per op and check; samples from the calls that code makes.

@parametrize_checks(rms_norm, linear)
def test_op(case):
    case()
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from custom_autograd.core.errors import CheckError
from custom_autograd.core.groups import group_or_other
from custom_autograd.verification.check import accepted_failures, all_checks, case_of, check, select_checks
from custom_autograd.verification.harness.base import Check
from custom_autograd.verification.harness.recorder import record_calls
from custom_autograd.verification.harness.targets import target_of
from custom_autograd.verification.report import Report

__all__ = ["CheckCase", "Test", "cases_of", "parametrize_checks", "record_calls"]

Test = TypeVar("Test", bound=Callable[..., Any])
"""A test function, which the decorator gives back parametrized."""


@dataclass(frozen=True, slots=True)
class CheckCase:
    """One check of one op, or a part of it; calling it runs the check.

    Args:
        op: the op, or anything else that `custom_autograd.check` takes.
        check: the name of the check.
        device: where samples live.
        dtype: the dtype of samples.
        seed: where random numbers begin.
        part: the part's label, such as "x_weight"; empty for the whole check.
        label: what the test is called; made from the names of op, check and part by default.
    """

    op: object
    check: str
    device: torch.device | str | None = None
    dtype: torch.dtype | None = None
    seed: int = 0
    part: str = ""
    label: str = ""

    def __call__(self) -> None:
        """Run the check on every sample; skips the test, with the reason, where it had nothing to look at.

        Raises:
            CheckError: something failed or raised.
        """
        import pytest  # only a test suite has it

        report = self.report()
        report.raise_for_failures()
        if all(result.status == "skipped" for result in report.results):
            pytest.skip("; ".join(dict.fromkeys(result.message for result in report.results)))

    def report(self) -> Report:
        """Run the check on every sample, and give what it found."""
        chosen = self.narrowed() if self.part else self.check
        return check(self.op, checks=[chosen], device=self.device, dtype=self.dtype, seed=self.seed)

    def narrowed(self) -> Check:
        """Return the check itself, or the part of it.

        Raises:
            CheckError: there is no such part.
        """
        (whole,) = select_checks([self.check])
        found = _parts(whole, self.op).get(self.part)
        if found is None:
            raise CheckError(f"{self}: the samples of the op have no such part")
        return found

    def __str__(self) -> str:
        return self.label or _label(self.op, self.check, self.part)


def cases_of(
    *ops: object, checks: Sequence[str] | str | None = None, device: torch.device | str | None = None
) -> tuple[CheckCase, ...]:
    """Return one case per op, check and part of the check, all checks by default, with samples on a device."""
    chosen = select_checks(checks)
    names = Counter(short_name(op) for op in ops)
    found = [(op, check.name, part) for op in ops for check in chosen for part in _parts(check, op)]
    return tuple(
        CheckCase(op, name, device, part=part, label=_label(op, name, part, is_short=names[short_name(op)] == 1))
        for op, name, part in found
    )


def short_name(op: object) -> str:
    """Return the name of an op without its namespace."""
    return target_of(op).name.rpartition("::")[2]


def _label(op: object, check: str, part: str, *, is_short: bool = True) -> str:
    """Return the label of a test item, such as rms_norm-gradcheck-x_weight."""
    return "-".join(word for word in (short_name(op) if is_short else target_of(op).name, check, part) if word)


def _parts(check: Check, op: object) -> Mapping[str, Check]:
    """Return the parts of a check; itself, if it does not apply, or its failures are accepted for all parts as one.

    Samples that cannot be made are reported by the test, and not when tests are collected.
    """
    target, whole = target_of(op), {"": check}
    if type(check).parts is Check.parts or target.samples is None or check.applies_to(target) is not None:
        return whole
    if check.name in accepted_failures().get(target.name, {}):
        return whole
    try:
        samples = [sample for sample in case_of(op).samples if sample.error is None]
    except CheckError:
        return whole
    is_accepted = any(check.name in sample.accepted for sample in samples)
    return whole if is_accepted else check.parts(target, samples)


def parametrize_checks(
    *ops: object, checks: Sequence[str] | str | None = None, device: torch.device | str | None = None
) -> Callable[[Test], Test]:
    """Parametrize a test function over ops and checks.

    Args:
        ops: what `custom_autograd.check` takes, with samples registered.
        checks: names, codes or groups of checks, such as "quick"; all by default.
        device: device of the samples; the CPU by default.

    Returns:
        A decorator; the test's argument `case` is a `CheckCase`, which is to be called.
    """
    import pytest  # only a test suite has it

    cases = cases_of(*ops, checks=checks, device=device)
    groups = {row.name: group_or_other(row.group) for row in all_checks()}
    marks = [(pytest.mark.custom_op, getattr(pytest.mark, groups[case.check])) for case in cases]
    rows = [pytest.param(case, id=str(case), marks=own) for case, own in zip(cases, marks, strict=True)]
    return pytest.mark.parametrize("case", rows)
