"""Ops x rules x operators -> outcomes: each mutant is installed, and what it breaks is looked for.

The unchanged ops must pass first: where a test fails anyhow, nothing can be learnt from its failing. A mutant that
changes nothing on the samples cannot be noticed, and is not a survivor.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from custom_autograd.core.errors import CheckError
from custom_autograd.core.messages import suggest
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.calls import layouts
from custom_autograd.verification.calls.call import begin, call_of, cotangents_of
from custom_autograd.verification.check import accepted_failures, case_of
from custom_autograd.verification.harness import runner, settings
from custom_autograd.verification.harness.base import Check
from custom_autograd.verification.harness.differentiable import can_have_gradient
from custom_autograd.verification.harness.targets import Target, call_on, target_of
from custom_autograd.verification.mutation.mistakes import tensors_of
from custom_autograd.verification.mutation.operators import OPERATORS, Mutant, is_plain, mutants_of
from custom_autograd.verification.mutation.points import Function, points_of
from custom_autograd.verification.report import Result, acceptance

MutantStatus: TypeAlias = Literal["noticed", "survived", "no change", "not reached"]
"""noticed: a test failed. survived: all passed. no change: it returns the right thing on the samples. not reached: the
samples never call the function, such as a kernel of a device that is not there."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one mutant.

    Args:
        op: the op's name.
        rule: which of its functions was changed.
        operator: how.
        purpose: what is wrong with such a rule: it "returns the negative".
        status: see `MutantStatus`.
        noticed_by: the checks or tests that failed.
        message: the first thing that they said.
        seconds: wall time, s.
    """

    op: str
    rule: str
    operator: str
    purpose: str
    status: MutantStatus
    noticed_by: tuple[str, ...] = ()
    message: str = ""
    seconds: float = 0.0


def is_clean(outcomes: Sequence[Outcome]) -> bool:
    """Return True if every mutant that could be noticed was."""
    return not any(outcome.status == "survived" for outcome in outcomes)


def rows_of(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Return a table: its titles, then a line for each mutant that changes something."""
    rows: list[tuple[str, ...]] = [("op", "rule", "operator", "noticed by")]
    for outcome in outcomes:
        if outcome.status in ("noticed", "survived"):
            first, *others = outcome.noticed_by or ("a failure without a name",)
            noticed = f"{first} and {len(others)} more" if others else first
            shown = "SURVIVED" if outcome.status == "survived" else noticed
            rows.append((outcome.op, outcome.rule, outcome.operator, shown))
    return rows


def remarks_of(outcomes: Sequence[Outcome]) -> list[str]:
    """Return what the table does not say: mutants without effect, what survivors do, and the counts."""
    lines = []
    for status, reason in REASONS.items():
        found: dict[str, list[str]] = {}
        for outcome in outcomes:
            if outcome.status == status:
                found.setdefault(f"{outcome.op}, {outcome.rule}", []).append(outcome.operator)
        lines += [f"{status}: {rule}: {', '.join(operators)} ({reason})" for rule, operators in found.items()]
    for outcome in outcomes:
        if outcome.status == "survived":
            where = f"{outcome.op}, {outcome.rule}, {outcome.operator}"
            lines.append(f"survived: {where}: no test fails where the rule {outcome.purpose}")
    counts = [(status, sum(outcome.status == status for outcome in outcomes)) for status in STATUSES]
    return [*lines, ", ".join(f"{number} {status}" for status, number in counts if number)]


def format_json(outcomes: Sequence[Outcome]) -> str:
    """Return an object with `format`, `ok`, `counts` and `mutants`."""
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in STATUSES}
    document = {
        "format": 1,
        "ok": is_clean(outcomes),
        "counts": counts,
        "mutants": [asdict(outcome) for outcome in outcomes],
    }
    return json.dumps(document, indent=2) + "\n"


STATUSES: tuple[MutantStatus, ...] = ("noticed", "survived", "no change", "not reached")

REASONS: dict[MutantStatus, str] = {
    "no change": "the rule returns the same on the samples",
    "not reached": "the samples never call it",
}


class Equivalence:
    """Runs a right function next to a wrong one, and compares what they return and what they write to.

    Attributes:
        calls: how often the wrong function was called.
        has_changed: whether it returned, wrote or raised anything else than the right one.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.has_changed = False
        self._returned: list[tuple[Tensor, Tensor]] = []

    def paired(self, right: Function, wrong: Function) -> Function:
        """Return the wrong function, watched."""

        def run(*args: Any, **kwargs: Any) -> Any:  # Any: a user's function
            self.calls += 1
            call, before = Sample(*args, **kwargs), Sample(*args, **kwargs).map(torch.clone)
            expected = list(tensors_of(right(*before.args, **before.kwargs)))
            try:
                result = wrong(*args, **kwargs)
                found = list(tensors_of(result))
            except Exception:
                self.has_changed = True
                raise
            self._compare(expected, found)
            self._compare(before.tensors(), call.tensors())
            self._returned += [(one.detach().clone(), one.detach()) for one in found if is_plain(one)]
            return result

        return run

    @property
    def status(self) -> MutantStatus:
        """Return the status before any test ran; "survived" means that nothing is known.

        It looks again at everything that was returned: later calls must not have changed it.
        """
        if self.has_changed or any(_differ(one, other) for one, other in self._returned):
            return "survived"
        return "no change" if self.calls else "not reached"

    def _compare(self, expected: Sequence[Tensor], found: Sequence[Tensor]) -> None:
        self.has_changed |= len(expected) != len(found)
        for one, other in zip(expected, found, strict=False):
            if is_plain(one) and is_plain(other):
                is_cut_off = torch.is_grad_enabled() and one.requires_grad != other.requires_grad
                self.has_changed |= is_cut_off or _differ(one, other)


def _differ(one: Tensor, other: Tensor) -> bool:
    if (one.shape, one.dtype, one.layout) != (other.shape, other.dtype, other.layout):
        return True
    return not torch.allclose(one.detach(), other.detach(), rtol=0, atol=0, equal_nan=True)


def status_on(mutant: Mutant, target: Target, samples: Sequence[Sample]) -> MutantStatus:
    """Return the status of a mutant from samples alone; "survived" means that nothing is known."""
    if mutant.point.kind == "backward" and mutant.part and not _is_wanted(mutant.part, target, samples):
        return "no change"
    return watch(mutant, target, samples).status


def _is_wanted(name: str, target: Target, samples: Sequence[Sample]) -> bool:
    """Return True if a sample has a differentiable tensor for that argument: any other gradient is dropped."""
    leaves = [leaf for sample in samples for leaf in sample.leaves() if can_have_gradient(leaf.tensor)]
    return any(target.argument_of(leaf).name == name for leaf in leaves)


def watch(mutant: Mutant, target: Target, samples: Sequence[Sample]) -> Equivalence:
    """Return what a mutant does on samples and on their other layouts: forward, backward, backward again, and tangents.

    Args:
        mutant: which is installed here; the target is to be that of its op.
        target: the op.
        samples: those that are not declared to raise.
    """
    equivalence = Equivalence()
    with mutant.point.exchange(equivalence.paired(mutant.point.function, mutant.function())):
        for sample in samples:
            for _, variant in layouts.of_all(sample):
                pairs = zip(variant.tensors(), sample.tensors(), strict=True)
                marked = variant.with_tensors([x.requires_grad_(y.requires_grad) for x, y in pairs])
                _run(target, marked, is_forward_mode=mutant.point.kind == "jvp")
    return equivalence


def _run(target: Target, sample: Sample, *, is_forward_mode: bool) -> None:
    """Run one call with everything that follows from it; the op may refuse any of it."""
    for is_differentiated_again in (True, False, False):
        with contextlib.suppress(Exception):
            call = call_of(target, sample).with_cotangent(torch.randn_like)
            begun = begin(target, target.call, call)
            begun.backward(cotangents_of(call, begun), create_graph=is_differentiated_again)
    for _ in range(2 if is_forward_mode else 0):
        with contextlib.suppress(Exception), forward_ad.dual_level():
            needs = call_of(target, sample).needs
            duals = [_dual(x, has_tangent=i in needs) for i, x in enumerate(sample.tensors())]
            call_on(target.call, sample.with_tensors(duals))


def _dual(tensor: Tensor, *, has_tangent: bool) -> Tensor:
    copied = tensor.detach().clone()
    dual: Tensor = forward_ad.make_dual(copied, torch.randn_like(tensor)) if has_tangent else copied
    return dual


@dataclass(frozen=True, slots=True)
class MutantVerdict:
    """Outcome of the tests on a mutant.

    Args:
        by: the names of what failed; none where everything passed.
        message: the first thing that they said.
        status: of a mutant that nothing notices, as far as the tests can tell.
    """

    by: tuple[str, ...] = ()
    message: str = ""
    status: MutantStatus = "survived"


Judge: TypeAlias = Callable[[object, Mutant], MutantVerdict]
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
            raise CheckError(
                target.name,
                "there is nothing to change",
                expected="an op with a rule or a kernel, or a torch.autograd.Function subclass",
                do="register a rule, or choose operators that apply",
            )
        for mutant in mutants:
            start = time.perf_counter()
            status = _status_on_samples(op, mutant, seed) if needs_samples or target.samples is not None else "survived"
            verdict = judge(op, mutant) if status == "survived" else MutantVerdict(status=status)
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
    with settings.isolated(seed), torch.enable_grad():
        return status_on(mutant, case.target, samples)


def by_checks(checks: Sequence[Check], *, seed: int = 0) -> Judge:
    """Return the judge that runs our own checks, until the first one fails."""

    def judge(op: object, mutant: Mutant) -> MutantVerdict:
        with mutant.point.exchange(mutant.function()):
            found = first_finding(op, checks, seed=seed)
        return MutantVerdict() if found is None else MutantVerdict((found.check,), found.message.split("\n", 1)[0])

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
