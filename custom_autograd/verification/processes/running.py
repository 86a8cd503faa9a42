"""The checks of one op in a forked process where that is sound, else in this one; how a process ended, as a result."""

import contextlib
import faulthandler
import io
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from custom_autograd.core.locations import format_location
from custom_autograd.kernels.compilers import end_of
from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private import verification
from custom_autograd.verification.checks.call_order import CallOrder, first_calls
from custom_autograd.verification.checks.explore import Explore
from custom_autograd.verification.harness import runner
from custom_autograd.verification.harness.base import Check
from custom_autograd.verification.harness.scripts import script_of
from custom_autograd.verification.harness.targets import Function, Target
from custom_autograd.verification.processes.process import CannotForkError, Ending, is_sound, run_forked
from custom_autograd.verification.report import Report, Result

LOST_DEVICE = "a kernel met an index beyond its tensor on the device, on which nothing runs in this process afterwards"
"""What CUDA's "device-side assert" means, almost always."""

MOST_LOST = 3
"""Draws that may end a process, after which further draws are left out; and checks, after which no other begins."""

DRAWN_ON, NO_DRAWS = "the rest was run without it", "further draws were left out"
NO_CHECKS, GOES_ON, ENDS = (
    "no check was run on it",
    "the checks that follow were run",
    "the checks that follow were not run",
)
"""What happens to the remaining draws and checks."""

MOST_LINES = 20
"""Lines of faulthandler's output that a report keeps."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The check and the sample that a process began last; the sample is empty before the first one."""

    check: str = "all checks"
    code: str = ""
    group: str = ""
    sample: str = ""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a new process continues after one that ended.

    Attributes:
        check: the check to begin with; empty for the first one.
        is_done: whether to begin behind it.
        results: what was found before.
        lost: the draws that ended a process.
    """

    check: str = ""
    is_done: bool = False
    results: tuple[Result, ...] = ()
    lost: tuple[tuple[str, ...], ...] = ()


@dataclass(slots=True)
class Heard:
    """Messages of a process so far."""

    results: list[Result] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    call: str = ""
    draw: tuple[str, ...] = ()
    lost: tuple[tuple[str, ...], ...] = ()
    check: str = ""
    is_done: bool = False
    ended: int = 0

    def hear(self, value: object) -> None:
        """Add one message."""
        if isinstance(value, Result):
            self.results.append(value)
        elif isinstance(value, Progress):
            self.progress, self.draw = value, ()
            if value.code:
                self.check = value.check
        elif isinstance(value, tuple):
            self.draw = value
        elif isinstance(value, dict):
            self.sources.update(value)
        else:
            self.call = str(value)

    def lose(self) -> str:
        """Note what ended the process: a draw, a sample's first call or a check; return what becomes of the rest."""
        if self.draw:
            self.lost, self.draw = (*self.lost, self.draw), ()
            self.is_done = len(self.lost) >= MOST_LOST
            rest = NO_DRAWS if self.is_done else DRAWN_ON
        else:
            self.ended += 1
            self.is_done = bool(self.progress.code)
            rest = GOES_ON if self.is_done else NO_CHECKS
            rest = ENDS if self.ended == MOST_LOST or not self.check else rest
        if not self.is_done:  # the check begins again
            self.results = [row for row in self.results if row.check != self.check or row.status == "error"]
        return rest

    def resumed(self) -> Resumed:
        """Return where another process takes over."""
        return Resumed(self.check, self.is_done, tuple(self.results), self.lost)


@dataclass(frozen=True, slots=True)
class Crash:
    """The end of a process that was to go on.

    Args:
        op: the op that was being checked.
        progress: the check and the sample.
        exit_code: as `multiprocessing.Process.exitcode` has it: a negative signal, or a code; None if it is not known.
        seed: where random numbers began.
        trace: what faulthandler wrote.
        call: the last call of the op that began, when the check ran alone again; None if it did not crash then.
        reproduce: what to run to see it again.
        draw: what the sample lacks, and the changes and the way of the call, where the check draws calls.
        rest: what becomes of the rest.
    """

    op: str
    progress: Progress
    exit_code: int | None
    seed: int = 0
    trace: str = ""
    call: str | None = ""
    reproduce: str = ""
    draw: tuple[str, ...] = ()
    rest: str = ENDS

    def result(self) -> Result:
        """Return the result that reports show."""
        case = f"{self.draw[0]}{', '.join(self.draw[1:]) or 'as given'}: " if self.draw else ""
        lines = [f"{case}the process {end_of(self.exit_code)}; {self.rest}"]
        if self.call is None:
            lines.append("it does not end when this check runs alone: an earlier one may have damaged its memory")
        lines += [LOST_DEVICE] if "device-side assert" in self.trace else []
        lines += [f"last call: {self.call}"] if self.call else []
        lines += [f"to reproduce: {self.reproduce}"] if self.reproduce else []
        lines += frames_of(self.trace)
        progress = self.progress
        sample = progress.sample or "all samples"
        return Result(
            self.op,
            progress.check,
            sample,
            "error",
            "\n".join(lines),
            code=progress.code,
            seed=self.seed,
            group=progress.group,
        )


def frames_of(trace: str) -> list[str]:
    """Return what faulthandler wrote with short file names, down to the check: what called the check is no news."""
    found: list[str] = []
    for line in trace.splitlines():
        frame = FRAME.fullmatch(line)
        if frame is None:
            found += [line.strip()] if line.strip() else []
            continue
        path, number, name = frame.groups()
        found.append(f"  {format_location(path, number)} {name}")
        if ((Path(path).parent == CHECKS or Path(path) == FIRST_CALL) and name == "run") or len(found) == MOST_LINES:
            break
    return found


FRAME = re.compile(r'\s*File "(.*)", line (\d+) in (.*)')

CHECKS = Path(__file__).parents[1] / "checks"
FIRST_CALL = Path(__file__).parents[1] / "harness" / "runner.py"


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
        load_for(checks)
        with contextlib.suppress(CannotForkError):
            return _run_forked(case, checks, seed)
    with loud():
        return run_here(case, checks, seed=seed)


def run_here(case: runner.Case, checks: Sequence[Check], *, seed: int = 0) -> Report:
    """Run checks on a case in this process, in one thread at a time: checks change settings of the process."""
    with _ALONE:
        return runner.run([case], checks, seed=seed)


_ALONE = threading.RLock()


def load_for(checks: Sequence[Check]) -> None:
    """Load the parts of torch that the checks need, which each fork of this process would load again."""
    verification.load_for({check.group for check in checks} | {check.name for check in checks})


def perform(
    case: runner.Case,
    checks: Sequence[Check],
    seed: int,
    tell: Callable[[object], None],
    *,
    resumed: Resumed = Resumed(),
    is_noting: bool = False,
) -> None:
    """Run checks on a case, and tell what begins and what is found.

    Args:
        case: a target with its samples.
        checks: in the order in which they run.
        seed: equal seeds draw equal numbers.
        tell: is given a `Progress`, a `Result`, a tuple (a draw that begins), a text (a call that begins) or a dict
            (sources).
        resumed: where an earlier process ended; what comes before that is not run.
        is_noting: whether calls are told; explanations of failures are left out then.
    """
    if is_noting:
        case = replace(case, target=noting(case.target, lambda call: tell(str(call))))
    names = [check.name for check in checks]
    first = names.index(resumed.check) + resumed.is_done if resumed.check else 0
    own = [replace(row, lost=resumed.lost, tell=tell) if isinstance(row, Explore) else row for row in checks[first:]]
    own = [_with_first_calls(row, case, seed) for row in own]
    report = runner.run(
        [case],
        own,
        before=runner.Before(checks, resumed.results),
        seed=seed,
        on_result=tell,
        on_start=lambda _, check, sample: tell(Progress(check.name, check.code, check.group, sample)),
        is_explained=not is_noting,
    )
    tell(dict(report.sources))


def _with_first_calls(check: Check, case: runner.Case, seed: int) -> Check:
    """Return the check `CallOrder` with what its calls give in a process that begins with them; others as they are."""
    if not isinstance(check, CallOrder) or not is_sound():
        return check
    sent: list[Any] = []  # Any: bytes, as `work` sends them

    def work(tell: Callable[[object], None]) -> None:
        for row in first_calls(case.target, case.samples, seed):
            file = io.BytesIO()
            torch.save(row, file)
            tell(file.getvalue())

    with contextlib.suppress(Exception):  # whatever it raises, the calls before it are compared
        run_forked(work, sent.append)
    return replace(check, first=dict(torch.load(io.BytesIO(row), weights_only=True) for row in sent))


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
    while not ending.is_finished:
        draw, rest = heard.draw, heard.lose()
        heard.results.append(_crash(case, checks, seed, heard, draw, rest, ending))
        if rest == ENDS:
            break
        try:
            ending = run_forked(lambda tell: perform(case, checks, seed, tell, resumed=heard.resumed()), heard.hear)
        except CannotForkError:  # what was found is kept
            break
    return Report(tuple(heard.results), heard.sources)


def _crash(
    case: runner.Case,
    checks: Sequence[Check],
    seed: int,
    heard: Heard,
    draw: tuple[str, ...],
    rest: str,
    ending: Ending,
) -> Result:
    """Return the result of a crash; the check runs once more, alone, to learn which call it is."""
    progress = heard.progress
    own = [check for check in checks if check.name == progress.check] if progress.code else checks[:1]
    if draw and not draw[0]:
        own = [Explore(case=draw[1:])]
    call = _last_call(case, own, seed, Resumed(results=tuple(heard.results)))
    which = f'checks=["{progress.check}"], ' if progress.code else ""
    reproduce = f"check(op, samples, {which}seed={seed}, isolated=False), which ends the program"
    crash = Crash(case.target.name, progress, ending.exit_code, seed, ending.trace, call, reproduce, draw, rest)
    found = [sample for i, sample in enumerate(case.samples) if runner.label_of(sample, i) == progress.sample]
    script = script_of(case.target, found[0], own[0], seed) if found and own else ""
    return replace(crash.result(), script=script)


def _last_call(case: runner.Case, checks: Sequence[Check], seed: int, resumed: Resumed) -> str | None:
    """Return the last call that begins before a check ends its process; None if it does not, empty if unknown."""
    heard = Heard()
    try:
        again = run_forked(lambda tell: perform(case, checks, seed, tell, resumed=resumed, is_noting=True), heard.hear)
    except CannotForkError:
        return ""
    return None if again.is_finished else heard.call


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
