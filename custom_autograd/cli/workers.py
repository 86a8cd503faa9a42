"""Checks ops in processes, so that a crash in a kernel ends one op and not the run, or as ranks.

A process is a fork of this one, which has loaded torch and the ops, where that is sound; else a fresh interpreter,
which loads the TARGET text itself. It checks one op after another, and reports each check that begins, each result, and
the end of each op; where it dies before that, the op gets a result that says so, and the ops that remain get a new
process.
"""

import argparse
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from custom_autograd.cli.options import SelectedOp, dtype_of
from custom_autograd.cli.selection import key_of, load_samples
from custom_autograd.cli.terminal import Advance
from custom_autograd.core.errors import CheckError
from custom_autograd.values.random_state import synchronize_accelerators
from custom_autograd.verification.check import case_of, select_checks
from custom_autograd.verification.harness.differentiable import with_surrogate
from custom_autograd.verification.harness.op_files import load
from custom_autograd.verification.harness.runner import Case
from custom_autograd.verification.harness.targets import target_of
from custom_autograd.verification.processes.process import (
    CannotForkError,
    Child,
    Ending,
    ParentPipe,
    Work,
    is_sound,
    listen,
    next_message,
    started,
)
from custom_autograd.verification.processes.ranks import run_on_ranks, timeout
from custom_autograd.verification.processes.running import ENDS, Crash, Heard, Progress, Resumed, load_for, perform
from custom_autograd.verification.report import Report, Result


@dataclass(frozen=True, slots=True)
class Task:
    """One op: the TARGET that names it, its position among the ops of that TARGET, and how its samples are made.

    The TARGET `alone` names it and no other; empty if that is the same. A file has the calls that the script `record`
    made, if its samples are not registered. `surrogate` is why the gradient of a Function is not the derivative.
    """

    text: str
    position: int
    op: str
    checks: tuple[str, ...]
    device: str
    dtype: str | None
    seed: int
    is_noting: bool = False
    seconds: float | None = None
    alone: str = ""
    resumed: Resumed = field(default_factory=Resumed)
    file: Path | None = None
    record: str = ""
    surrogate: str | None = None

    def make_case(self) -> Case:
        """Load the op in this process, and return it with its samples.

        Raises:
            CheckError: if it cannot be loaded here.
        """
        value = load(self.text)[self.position].value
        target = with_surrogate(replace(target_of(value), name=self.op), self.surrogate)
        samples = None if self.file is None else load_samples(self.file, key_of(value))
        dtype = dtype_of(self.dtype)
        return case_of(target, samples, device=self.device, dtype=dtype, seed=self.seed, seconds=self.seconds)

    def __call__(self, line: ParentPipe) -> None:
        """Check the op, and send each result at once, so that it survives the process."""
        try:
            case, checks = self.make_case(), select_checks(self.checks)
        except CheckError as error:
            line(Result(self.op, "all checks", "all samples", "error", str(error)))
            return
        perform(case, checks, self.seed, line, resumed=self.resumed, is_noting=self.is_noting)
        synchronize_accelerators()  # raises if a kernel broke the device, which would fail the next op in this process


def work(line: ParentPipe) -> None:
    """Check one op after another, and send None after each, until None arrives instead of a task."""
    while isinstance(task := line.take(), Task):
        task(line)
        line(None)


class Workers:
    """Up to `most` processes that work on tasks.

    Args:
        tasks: checks of one op each.
        most: the number of processes at a time.
        advance: called as each check begins, and with each result.
    """

    def __init__(self, tasks: Sequence[Task], most: int, advance: Advance) -> None:
        self._tasks = list(tasks)
        self._most = most
        self._advance = advance
        self._heard = [Heard() for _ in tasks]
        self._waiting = list(range(len(tasks)))
        self._busy: dict[Child, int] = {}
        self._may_fork = True  # until torch refuses a backward in a fork

    def run(self) -> None:
        """Work until every task has ended, or an exception such as Ctrl-C; end all processes."""
        if self._tasks and is_sound():
            load_for(select_checks([name for task in self._tasks for name in task.checks]))
        with contextlib.ExitStack() as stack:
            try:
                while self._waiting or self._busy:
                    while self._waiting and len(self._busy) < self._most:
                        self._give(self._start(work, stack))
                    found = next_message(self._busy)
                    if found is not None:
                        self._hear(*found)
            finally:
                self._listen_once_more()

    def report(self) -> Report:
        """Return the results so far, in the order of the tasks."""
        results = tuple(result for heard in self._heard for result in heard.results)
        return Report(results, {op: text for heard in self._heard for op, text in heard.sources.items()})

    def _start(self, work: Work, stack: contextlib.ExitStack) -> Child:
        """Return a process, which ends with the stack."""
        if self._may_fork and is_sound():
            with contextlib.suppress(CannotForkError):  # a thread has begun to work meanwhile
                return stack.enter_context(started(work, is_forked=True, share=self._most))
        return stack.enter_context(started(work, share=self._most))

    def _give(self, child: Child) -> None:
        """Send the next task to a process, or None after the last one."""
        self._busy[child] = self._waiting.pop(0) if self._waiting else -1
        child.give(self._tasks[self._busy[child]] if self._busy[child] >= 0 else None)

    def _hear(self, child: Child, message: object) -> None:
        position = self._busy[child]
        if message is None:
            self._give(child)
        elif isinstance(message, Ending):
            del self._busy[child]
            if isinstance(message.error, CannotForkError):
                self._may_fork = False
                self._waiting[:0] = [position] if position >= 0 else []
            elif position >= 0:
                heard, task = self._heard[position], self._tasks[position]
                draw, rest = heard.draw, heard.lose()
                self._keep(position, self._died(position, draw, rest, message))
                if rest != ENDS:
                    self._tasks[position] = replace(task, resumed=heard.resumed())
                    self._waiting.insert(0, position)
        else:
            self._keep(position, message)

    def _keep(self, position: int, message: object) -> None:
        self._heard[position].hear(message)
        if isinstance(message, (Result, Progress)):
            self._advance(self._tasks[position].op, message.check, message if isinstance(message, Result) else None)

    def _listen_once_more(self) -> None:
        """Receive the messages of each process before it is killed."""
        for child, position in self._busy.items():
            for _ in range(MOST_UNHEARD):
                if not child.pipe.poll() or isinstance(message := child.receive(), Ending):
                    break
                if isinstance(message, Result):
                    self._keep(position, message)

    def _died(self, position: int, draw: tuple[str, ...], rest: str, ending: Ending) -> Result:
        """Return the result of an op whose process died; its check runs again, alone, to find the call that ends it."""
        task, told = self._tasks[position], self._heard[position]
        progress, resumed = told.progress, Resumed(results=tuple(told.results))
        checks = (progress.check,) if progress.code else task.checks
        heard = Heard()
        with contextlib.ExitStack() as stack:
            child = self._start(replace(task, checks=checks, resumed=resumed, is_noting=True), stack)
            call = None if listen(child, heard.hear).is_finished else heard.call
        again = _command(task, progress)
        seen = ending.exit_code, task.seed, ending.trace
        return Crash(task.op, progress, *seen, call, again, draw, rest).result()


def verify_on_ranks(
    arguments: argparse.Namespace, ops: Sequence[SelectedOp], advance: Advance
) -> tuple[Report, KeyboardInterrupt | None]:
    """Return the report of ops with DTensors on processes with real collectives, and what ended it early.

    Raises:
        CheckError: a rank died, was late, or could not begin.
    """
    found: list[Result] = []
    waiting = tasks_of(arguments, ops, ())
    makers = [task.make_case for task in waiting]
    try:
        for results in run_on_ranks(makers, arguments.ranks, arguments.device, arguments.seed, timeout()):
            waiting.pop(0)
            found += results
            for result in results:
                advance(result.op, result.check, result)
    except CheckError as error:
        raise CheckError(f"{waiting[0].op}: {error}" if waiting else str(error)) from None
    except KeyboardInterrupt as error:
        return Report(tuple(found)), error
    return Report(tuple(found)), None


def tasks_of(arguments: argparse.Namespace, ops: Sequence[SelectedOp], checks: tuple[str, ...]) -> list[Task]:
    """Return a task for each op that has samples."""
    how = (arguments.device, arguments.dtype, arguments.seed)
    return [
        Task(
            op.text,
            op.position,
            op.target.name,
            checks,
            *how,
            seconds=arguments.seconds,
            alone=op.alone,
            file=op.file,
            record="" if op.file is None else arguments.record,
            surrogate=op.surrogate,
        )
        for op in ops
        if op.has_samples
    ]


def _command(task: Task, progress: Progress) -> str:
    """Return the command that runs the task on its op."""
    options = {"--checks": progress.check if progress.code else "", "--dtype": task.dtype or ""}
    options["--device"] = "" if task.device == "cpu" else task.device
    options["--record"] = task.record
    options["--surrogate"] = "" if task.surrogate is None else task.op
    options["--seed"] = str(task.seed) if task.seed else ""
    words = [f"{option} {value}" for option, value in options.items() if value]
    return " ".join(["custom-autograd check", task.alone or task.text, *words])


MOST_UNHEARD = 1000
"""Number of messages of a process that are received after Ctrl-C: it sends more until it is killed."""
