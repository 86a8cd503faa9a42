"""The checks of one op in a forked process where that is sound, else in this one."""

import contextlib
import faulthandler
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private import verification
from custom_autograd.verification.harness import runner
from custom_autograd.verification.harness.base import Check
from custom_autograd.verification.harness.scripts import script_of
from custom_autograd.verification.harness.targets import Function, Target
from custom_autograd.verification.isolation.crashes import Crash, Heard, Progress
from custom_autograd.verification.isolation.forking import CannotForkError, Ending, Tell, is_sound, run_forked
from custom_autograd.verification.report import Report, Result


def run(case: runner.Case, checks: Sequence[Check], *, seed: int = 0) -> Report:
    """Run checks on a case; a crash of the process that runs them is a result.

    Args:
        case: a target with its samples.
        checks: in the order in which they run.
        seed: equal seeds draw equal numbers.

    Returns:
        The results. Where a process cannot be forked they come from this one, and a crash ends the program, with the
        stack of Python on standard error.
    """
    if is_sound():
        verification.load_for({check.group for check in checks} | {check.name for check in checks})
        with contextlib.suppress(CannotForkError):
            return _run_forked(case, checks, seed)
    with loud():
        return runner.run([case], checks, seed=seed)


def perform(case: runner.Case, checks: Sequence[Check], seed: int, tell: Tell, *, is_noting: bool = False) -> None:
    """Run checks on a case, and tell what begins and what is found.

    Args:
        case: a target with its samples.
        checks: in the order in which they run.
        seed: equal seeds draw equal numbers.
        tell: is given a `Progress`, a `Result`, a text (a call that begins) or a dict (sources).
        is_noting: whether calls are told; explanations of failures are left out then.
    """
    if is_noting:
        case = runner.Case(noting(case.target, lambda call: tell(str(call))), case.samples)
    report = runner.run(
        [case],
        checks,
        seed=seed,
        on_result=tell,
        on_start=lambda _, check, sample: tell(Progress(check.name, check.code, check.group, sample)),
        is_explained=not is_noting,
    )
    tell(dict(report.sources))


def noting(target: Target, note: Callable[[Sample], None]) -> Target:
    """Return the target with a note of each call before it begins, but for calls that a compiler traces."""
    known: dict[int, Function] = {}

    def noted(function: Function) -> Function:
        def call(*args: object, **kwargs: object) -> object:
            if not torch.compiler.is_compiling():
                note(Sample(*args, **kwargs))
            return function(*args, **kwargs)

        return known.setdefault(id(function), call)  # checks compare functions by identity

    return replace(
        target,
        call=noted(target.call),
        full=noted(target.full),
        reference=None if target.reference is None else noted(target.reference),
        kernels={key: noted(kernel) for key, kernel in target.kernels.items()},
    )


def _run_forked(case: runner.Case, checks: Sequence[Check], seed: int) -> Report:
    heard = Heard()
    ending = run_forked(lambda tell: perform(case, checks, seed, tell), heard.hear)
    if ending.exit_code is not None:
        heard.results.append(_crash(case, checks, seed, heard.progress, ending))
    return Report(tuple(heard.results), heard.sources)


def _crash(case: runner.Case, checks: Sequence[Check], seed: int, progress: Progress, ending: Ending) -> Result:
    """Return the result of a crash; the check runs once more, alone, to learn which call it is."""
    call = _last_call(case, [check for check in checks if check.name == progress.check], seed)
    reproduce = f'check(op, samples, checks=["{progress.check}"], seed={seed}, isolated=False), which ends the program'
    crash = Crash(case.target.name, progress, ending.exit_code, seed, ending.trace, call, reproduce)
    found = [sample for i, sample in enumerate(case.samples) if runner.label_of(sample, i) == progress.sample]
    script = script_of(case.target, found[0], progress.check, seed) if found else ""
    return replace(crash.result(), script=script)


def _last_call(case: runner.Case, checks: Sequence[Check], seed: int) -> str | None:
    """Return the last call that begins before a check ends its process; None if it does not, empty if unknown."""
    heard = Heard()
    try:
        again = run_forked(lambda tell: perform(case, checks, seed, tell, is_noting=True), heard.hear)
    except CannotForkError:
        return ""
    return None if again.exit_code is None else heard.call


@contextlib.contextmanager
def loud() -> Iterator[None]:
    """Let a crash print where it happened, unless faulthandler does already or there is nowhere to print to."""
    stream = None if faulthandler.is_enabled() else sys.__stderr__
    if stream is None:
        yield
        return
    with contextlib.suppress(OSError, ValueError):  # a stream without a file
        faulthandler.enable(file=stream)
    try:
        yield
    finally:
        faulthandler.disable()
