"""Ops x rules x operators -> outcomes: each mutant is installed, and what it breaks is looked for.

The unchanged ops must pass first: where a test fails anyhow, nothing can be learnt from its failing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from custom_autograd.core.errors import CheckError
from custom_autograd.core.messages import suggest
from custom_autograd.verification.check import accepted_failures, case_of
from custom_autograd.verification.harness import acceptance, randomness, runner
from custom_autograd.verification.harness.base import Check
from custom_autograd.verification.harness.targets import target_of
from custom_autograd.verification.mutation.equivalence import status_on
from custom_autograd.verification.mutation.operators import OPERATORS, Mutant, mutants_of
from custom_autograd.verification.mutation.outcomes import MutantStatus, Outcome
from custom_autograd.verification.mutation.points import points_of
from custom_autograd.verification.report import Result


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of the tests on a mutant.

    Args:
        by: the names of what failed; none where everything passed.
        message: the first thing that they said.
        status: of a mutant that nothing notices, as far as the tests can tell.
    """

    by: tuple[str, ...] = ()
    message: str = ""
    status: MutantStatus = "survived"


Judge: TypeAlias = Callable[[object, Mutant], Verdict]
"""(op, mutant) -> what the tests report of the mutant, which is not installed yet."""


def mutate(
    ops: Iterable[object],
    judge: Judge,
    *,
    operators: Sequence[str] | None = None,
    seed: int = 0,
    needs_samples: bool = True,
) -> Iterator[Outcome]:
    """Change every rule and kernel of every op in every way.

    Args:
        ops: those of custom_op and torch.library.custom_op, and torch.autograd.Function subclasses.
        judge: what decides whether a mutant is noticed.
        operators: names of operators; all by default.
        seed: where the random numbers of samples begin.
        needs_samples: whether an op without samples is an error; else nothing is known of what its mutants change.

    Yields:
        One outcome per mutant.

    Raises:
        CheckError: an operator is unknown, or an op has no rules or no samples.
    """
    names = _operators(operators)
    for op in ops:
        target = target_of(op)
        mutants = [mutant for point in points_of(op) for mutant in mutants_of(point, names)]
        if not mutants:
            raise _nothing_to_change(target.name)
        for mutant in mutants:
            start = time.perf_counter()
            status = _status_on_samples(op, mutant, seed) if needs_samples or target.samples is not None else "survived"
            verdict = judge(op, mutant) if status == "survived" else Verdict(status=status)
            yield Outcome(
                mutant.point.op,
                mutant.point.rule,
                mutant.label,
                mutant.operator.purpose,
                "noticed" if verdict.by else verdict.status,
                verdict.by,
                verdict.message,
                time.perf_counter() - start,
            )


def _status_on_samples(op: object, mutant: Mutant, seed: int) -> MutantStatus:
    """Return the status before any test runs; "survived" means that nothing is known yet."""
    case = case_of(op, seed=seed)
    samples = [sample for sample in case.samples if sample.error is None]
    with randomness.isolated(seed), torch.enable_grad():
        return status_on(mutant, case.target, samples)


def by_checks(checks: Sequence[Check], *, seed: int = 0) -> Judge:
    """Return the judge that runs our own checks, until the first one fails."""

    def judge(op: object, mutant: Mutant) -> Verdict:
        with mutant.point.exchange(mutant.function()):
            found = first_finding(op, checks, seed=seed)
        return Verdict() if found is None else Verdict((found.check,), found.message.split("\n", 1)[0])

    return judge


def first_finding(op: object, checks: Sequence[Check], *, seed: int = 0) -> Result | None:
    """Return the first thing that the checks find, on samples made again; None if they find nothing."""
    case, accepted = case_of(op, seed=seed), accepted_failures()
    for check in checks:
        report = acceptance.accept(runner.run([case], [check], seed=seed, is_explained=False), accepted)
        found = next((result for result in report.results if result.is_finding), None)
        if found is not None:
            return found
    return None


def require_passing(ops: Iterable[object], checks: Sequence[Check], *, seed: int = 0) -> None:
    """Check the unchanged ops.

    Raises:
        CheckError: a check fails.
    """
    for op in ops:
        found = first_finding(op, checks, seed=seed)
        if found is not None:
            problem = f"the check {found.check} fails before anything is changed, on {found.sample}"
            do = "correct the op first, or choose other checks with --checks"
            raise CheckError(found.op, problem, found=found.message.split("\n", 1)[0], do=do)


def _operators(names: Sequence[str] | None) -> tuple[str, ...] | None:
    known = [operator.name for operator in OPERATORS]
    for name in names or ():
        if name not in known:
            advice = suggest(name, known) or f"there are {', '.join(known)}"
            raise CheckError("mutate", f"there is no operator called '{name}'", do=advice)
    return None if names is None else tuple(names)


def _nothing_to_change(name: str) -> CheckError:
    return CheckError(
        name,
        "there is nothing to change",
        expected="an op with a rule or a kernel, or a torch.autograd.Function subclass",
        do="register a rule, or choose operators that apply",
    )
