"""Targets x checks x samples -> Report: one check's exception does not stop the next, and every run repeats exactly."""

import contextlib
import inspect
import logging
import math
import re
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from custom_autograd.core.errors import CustomAutogradError, GradientError, KernelError
from custom_autograd.core.locations import format_location
from custom_autograd.core.messages import quote
from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private import verification
from custom_autograd.verification.harness import settings
from custom_autograd.verification.harness.agreement import is_within_domain, values_of
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    find_refusal,
    first_line,
    rule_behind,
    skipped,
)
from custom_autograd.verification.harness.causes import choose_cause
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.differentiable import without_gradients_that_the_kernel_refuses
from custom_autograd.verification.harness.held import held_by_objects
from custom_autograd.verification.harness.scripts import script_of
from custom_autograd.verification.harness.settings import kept as kept_settings
from custom_autograd.verification.harness.sweeps import has_arithmetic, representatives, shrink
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.report import Report, Result, Status
from custom_autograd.verification.report.html import ALL_CHECKS


class FirstCall(Check):
    """The op takes the sample; the runner makes this check before the first one of each sample."""

    name = ALL_CHECKS
    code = ""
    purpose = "the op takes its samples"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield one finding; an op that refuses its own sample fails, too."""
        missing = _missing_arguments(target, sample)
        if missing:
            yield failed(f"the sample has no value for {quote(missing)}", cause=CALL)
            return
        try:
            with torch.no_grad():
                values = values_of(target, target.call, sample)
        except CustomAutogradError as error:
            yield failed(str(error))
            return
        except Exception as error:
            if find_refusal(error) is None:
                raise
            yield failed(f"the op raises {first_line(error)}")
            return
        _require_own_tensors(target, sample, values)
        yield PASSED


CALL = "Sample(...) takes the arguments of one call of the op"


def _require_own_tensors(target: Target, sample: Sample, values: Sequence[Tensor]) -> None:
    """Raise if the op does not read a tensor that it is given, but the same one in an object: checks give copies.

    Raises:
        NothingToCheckError: its results stay when the tensors that objects hold as well are others.
    """
    kept = [x for x in held_by_objects(sample) if has_arithmetic(x)]
    if not kept:
        return
    moved = sample.map(lambda x: x.detach() * 1.25 + 0.125 if any(x is one for one in kept) else x)
    try:
        with torch.no_grad():
            difference = find_difference(values_of(target, target.call, moved), values)
    except Exception:  # noqa: BLE001 - it has read them
        return
    if difference is None:
        names = [target.name_of(leaf) for leaf in sample.leaves() if any(leaf.tensor is x for x in kept)]
        raise NothingToCheckError(HELD.format(quote(names)))


HELD = (
    "it ignores {}, and reads the same tensors from another argument: checks pass copies, so that there is nothing to "
    "compare; call the module with torch.func.functional_call"
)


def _missing_arguments(target: Target, sample: Sample) -> list[str]:
    """Return the names of the arguments that a sample has no value for."""
    given = {argument.name for argument in target.arguments[: len(sample.args)]} | set(sample.kwargs)
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [row.name for row in target.arguments if row.default is inspect.Parameter.empty and row.kind not in stars]
    return [name for name in needed if name not in given]


Shown: TypeAlias = tuple[Check, Sample]
"""The check, or the part of one, that shows a finding, and the call on which it does."""


@dataclass(frozen=True, slots=True)
class Case:
    """One target with the samples to check it on.

    Attributes:
        target: what is verified.
        samples: the calls to verify it on.
        seconds: of CPU time, after which no check of the target begins; None for no limit.
    """

    target: Target
    samples: tuple[Sample, ...]
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Before:
    """The results of earlier checks, which ran in a process that has ended."""

    checks: Sequence[Check] = ()
    results: Sequence[Result] = ()

    def findings(self) -> set[tuple[str, str]]:
        """Return the checks and samples after whose failures others are not run."""
        ending = {check.name: check.ends_others for check in self.checks}
        rows = [row for row in self.results if (row.is_finding or row.accepted) and row.check in ending]
        return {(row.check, row.sample) for row in rows if ending[row.check](row.message)}

    def passed(self, label: str) -> set[str]:
        """Return the checks that passed on a sample."""
        return {row.check for row in self.results if _is_plain_pass(row) and row.sample == label}

    def fits(self, samples: Sequence[Sample]) -> dict[int, bool]:
        """Return False for the samples, by position, that the op did not take."""
        refused = {row.sample for row in self.results if row.check == FirstCall.name}
        return {i: False for i, sample in enumerate(samples) if label_of(sample, i) in refused}


def _is_plain_pass(result: Result) -> bool:
    return result.status == "passed" and not result.message


def run(
    cases: Iterable[Case],
    checks: Sequence[Check],
    *,
    before: Before | None = None,
    seed: int = 0,
    on_result: Callable[[Result], None] | None = None,
    on_start: Callable[[str, Check, str], None] | None = None,
    is_explained: bool = True,
) -> Report:
    """Run every check on every sample of every target.

    Args:
        cases: targets with their samples.
        checks: in the order in which they run.
        before: what others found before these, in another process.
        seed: equal seeds draw equal numbers; each check on each sample has its own.
        on_result: called with each result as it comes.
        on_start: called with the op, the check, and the label of each sample, before it runs; the label is empty at
            first.
        is_explained: whether the first failure of each check is shrunk, and shown by a script.

    Returns:
        One result per target, check and sample; one per target and check where the check does not apply.
    """
    results: list[Result] = []
    begin = on_start or (lambda op, check, label: None)
    cases = tuple(cases)
    for case in cases:
        before = before or Before()
        findings, fits = before.findings(), before.fits(case.samples)
        passed = {i: before.passed(label_of(sample, i)) for i, sample in enumerate(case.samples)}
        left = _countdown(case.seconds)
        for check in checks:
            is_first = is_explained
            for shown, found in _run_check(case, check, seed, findings, passed, fits, begin, left):
                result = replace(found, group=check.group)
                if result.status == "failed" and shown is not None and is_first:
                    result, is_first = _explained(case.target, *shown, seed, result), False
                results.append(result)
                if (result.is_finding or result.accepted) and check.ends_others(result.message):
                    findings.add((check.name, result.sample))
                if on_result is not None:
                    on_result(result)
    sources = {case.target.name: _source_of(case.target) for case in cases}
    return Report(tuple(results), {name: source for name, source in sources.items() if source})


def _source_of(target: Target) -> str:
    try:
        return target.source()
    except Exception:  # noqa: BLE001 - rules that do not fit together; what is wrong with them is in the results
        return ""


def _countdown(seconds: float | None) -> Callable[[], float]:
    """Return a function that returns how much CPU time is left."""
    end = None if seconds is None else time.process_time() + seconds
    return lambda: math.inf if end is None else end - time.process_time()


def label_of(sample: Sample, position: int) -> str:
    """Return what reports call a sample: its name, else its position and its shapes."""
    return sample.name or f"sample {position}: {str(sample).removeprefix('Sample')}"


def _run_check(
    case: Case,
    check: Check,
    seed: int,
    findings: Set[tuple[str, str]],
    passed: Mapping[int, set[str]],
    fits: dict[int, bool],
    begin: Callable[[str, Check, str], None],
    left: Callable[[], float],
) -> Iterator[tuple[Shown | None, Result]]:
    name = case.target.name
    begin(name, check, "")
    samples = [(i, row) for i, row in enumerate(case.samples) if (row.error is not None) == check.is_for_errors]
    if samples and not any(fits.get(position, True) for position, _ in samples):
        return  # what is wrong with them is told once
    reason = check.applies_to(case.target) or ("" if samples else NOTHING[check.is_for_errors])
    left_out = partial(Result, name, check.name, status="skipped", code=check.code, seed=seed)
    if reason:
        yield None, left_out(sample="all samples", message=reason)
        return
    check = check.among(case.target, [sample for _, sample in samples]).within(left())
    for count, (position, sample) in enumerate(representatives(samples, check.most_samples)):
        label = label_of(sample, position)
        if left() <= 0:
            which = "further samples" if count else "all samples"
            reason = f"not reached in {case.seconds:g} s of CPU time; give the op more seconds"
            yield None, left_out(sample=which, message=reason)
            return
        failed_first = [other for other in check.needs if (other, label) in findings]
        if failed_first:
            yield None, left_out(sample=label, message=f"the check {failed_first[0]} fails first")
            continue
        if position not in fits and sample.error is None and not sample.accepted:
            begin(name, FirstCall(), label)
            _, first = _run_at(case.target, FirstCall(), sample, position, seed)
            fits[position] = first.status == "passed"
            if not fits[position]:
                yield None, first
        if not fits.get(position, True):
            continue
        begin(name, check, label)
        own = (check.further() if count else check).after(frozenset(passed[position]))
        shown, result = _run_at(case.target, own, sample, position, seed)
        if _is_plain_pass(result):
            passed[position].add(check.name)
        yield shown, _accepted(result, sample.accepted.get(check.name))


NOTHING = ("every sample is to raise", "no sample is declared to raise (Sample.raises)")
"""Why no sample is for a check, and for one that looks at errors."""


def _run_at(target: Target, check: Check, sample: Sample, position: int, seed: int) -> tuple[Shown, Result]:
    """Return what a check finds on a sample, and the part of the check and the call that show it."""
    own_seed = zlib.crc32(f"{target.name}/{check.name}/{position}/{seed}".encode())
    with settings.isolated(own_seed), kept_settings(), torch.inference_mode(False), torch.enable_grad():
        target = without_gradients_that_the_kernel_refuses(target, sample)
        shown, result = _run_on_sample(target, check, sample, label_of(sample, position))
    return shown, replace(result, seed=seed)


def _accepted(result: Result, reason: str | None) -> Result:
    """Return a skip for a failure that a sample declares, and a failure for a pass that it declares to fail."""
    if reason is None or result.status == "skipped":
        return result
    if result.is_finding:
        message = f"accepted, because {reason}\n{result.message}"
        return replace(result, status="skipped", message=message, accepted=reason)
    message = f"it passes, but the sample declares that it fails, because {reason}: remove the xfail"
    return replace(result, status="failed", message=message)


def _explained(target: Target, check: Check, sample: Sample, seed: int, result: Result) -> Result:
    """Return the result with a script that shows it on the smallest sample that shows it."""

    def fails(candidate: Sample) -> bool:
        if not is_within_domain(target, sample, candidate):
            return False
        _, again = _run_at(target, check, candidate, 0, seed)
        return again.status == "failed" and again.cause == result.cause

    smallest = sample if check.is_for_errors else shrink(sample, fails)
    return replace(result, script="" if smallest is None else script_of(target, smallest, check, seed))


def _run_on_sample(target: Target, check: Check, sample: Sample, label: str) -> tuple[Shown, Result]:
    start = time.perf_counter()
    findings: list[Finding] = []
    try:
        with _quiet():
            for finding in check.run(target, sample):
                findings.append(finding)  # noqa: PERF402 - what was found before an exception is kept
    except NothingToCheckError as reason:
        findings.append(Finding("skipped", str(reason)))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - what a check raises is a result, and so is a panic of Rust
        known = _finding_of(error)
        if known is None:
            message, seconds = _describe(error), time.perf_counter() - start
            return (check, sample), Result(target.name, check.name, label, "error", message, seconds, check.code)
        findings.append(known)
    status, message = _summarise(findings)
    causing = [finding for finding in findings if finding.status == status]
    alone = next((finding for finding in causing if finding.shown), None)
    cause = choose_cause([finding.cause for finding in ([alone] if alone else causing)])  # shown by a script, alone
    if status == "failed" and not cause:
        cause = _other_number(target, message)
    measures = {name: value for finding in findings for name, value in finding.measures.items()}
    advice = next((finding.advice for finding in findings if finding.advice), "")
    result = Result(target.name, check.name, label, status, message, time.perf_counter() - start, check.code)
    shown = alone.shown if alone and alone.shown else (check, sample)
    return shown, replace(result, cause=cause, measures=measures, advice=advice)


def _other_number(target: Target, message: str) -> str:
    """Return what may be wrong with a call whose label begins with another number than the sample has; or nothing."""
    label = re.match(r"(\w+)=[^\s:,]+[:,] ", message)
    if label is None or all(argument.name != label[1] for argument in target.arguments):
        return ""
    return f"no sample has this '{label[1]}': if it is not allowed, raise, or give Sample(...).keeping('{label[1]}')"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings and logging: torch warns of its own deprecations, and logs what it also raises."""
    disabled = logging.root.manager.disable
    with warnings.catch_warnings(), verification.quiet_vmap():
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
        try:
            yield
        finally:
            logging.disable(disabled)


def _finding_of(error: BaseException) -> Finding | None:
    """Return a skip for a refusal, unless a rule raised it.

    What this package says of a rule or a kernel is a failure.
    """
    refusal = None if rule_behind(error) else find_refusal(error)
    if refusal is not None:
        return skipped(refusal)
    return failed(str(error)) if isinstance(error, (GradientError, KernelError)) else None


def _summarise(findings: Sequence[Finding]) -> tuple[Status, str]:
    for status in ("failed", "skipped"):
        messages = list(dict.fromkeys(finding.message for finding in findings if finding.status == status))
        if messages and (status == "failed" or not any(finding.status == "passed" for finding in findings)):
            return status, "\n".join(messages)
    if not findings:
        return "skipped", "the check found nothing to look at"
    left_out = dict.fromkeys(finding.message for finding in findings if finding.status == "skipped")
    return "passed", "\n".join(f"not checked: {message}" for message in left_out)  # it stays visible


def _describe(error: BaseException) -> str:
    """Return the error, and its last frames."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    lines = [f"{type(error).__name__}: {error}".rstrip(), "last frames:"]
    lines += [f"  {format_location(frame.filename, frame.lineno)} {frame.name}: {frame.line}" for frame in frames]
    return "\n".join(lines)
