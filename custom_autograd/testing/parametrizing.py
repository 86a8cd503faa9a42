"""For other people's test suites: one pytest test per op and check.

@parametrize_checks(rms_norm, linear)
def test_op(case):
    case()
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from custom_autograd.checking import all_checks, check, select_checks
from custom_autograd.checks.targets import target_of

Test = TypeVar("Test", bound=Callable[..., Any])
"""A test function, which the decorator gives back parametrized."""


@dataclass(frozen=True, slots=True)
class CheckCase:
    """One check of one op; calling it runs the check.

    Args:
        op: the op, or anything else that `custom_autograd.check` takes.
        check: the name of the check.
        device: where samples live.
        dtype: the dtype of samples.
        seed: where random numbers begin.
    """

    op: object
    check: str
    device: torch.device | str | None = None
    dtype: torch.dtype | None = None
    seed: int = 0

    def __call__(self) -> None:
        """Runs the check on every sample; skips the test, with the reason, where it had nothing to look at.

        Raises:
            CheckError: something failed or raised.
        """
        import pytest  # only a test suite has it

        report = check(self.op, checks=[self.check], device=self.device, dtype=self.dtype, seed=self.seed)
        report.raise_for_failures()
        if all(result.status == "skipped" for result in report.results):
            pytest.skip("; ".join(dict.fromkeys(result.message for result in report.results)))

    def __str__(self) -> str:
        return f"{target_of(self.op).name}-{self.check}"


def cases_of(*ops: object, checks: Sequence[str] | None = None) -> tuple[CheckCase, ...]:
    """One case per op and check, all checks by default."""
    chosen = all_checks() if checks is None else select_checks(checks)
    return tuple(CheckCase(op, row.name) for op in ops for row in chosen)


def parametrize_checks(*ops: object, checks: Sequence[str] | None = None) -> Callable[[Test], Test]:
    """Parametrizes a test function over ops and checks.

    Args:
        ops: what `custom_autograd.check` takes, with samples registered.
        checks: names of checks; all by default.

    Returns:
        A decorator; the test's argument `case` is a `CheckCase`, which is to be called.
    """
    import pytest  # only a test suite has it

    cases = cases_of(*ops, checks=checks)
    return pytest.mark.parametrize("case", cases, ids=[str(case) for case in cases])
