"""custom-autograd check -j N: every op in one of N processes, so that a crash in a kernel ends one op and not the run.

A process loads the TARGET text itself, and checks one op after another. It tells of each check that begins, of each
result, and of the end of each op; where it dies before that, the op gets a result that says so, and the ops that remain
get a new process.
"""

import contextlib
import faulthandler
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import TYPE_CHECKING, TypeAlias

from custom_autograd.report import Report, Result

if TYPE_CHECKING:
    from custom_autograd.checks.base import Check

Told: TypeAlias = tuple[str, object]
"""What a process says: ("check", its name, code and group), ("result", it), ("end", sources) or ("failure", a text)."""


@dataclass(frozen=True, slots=True)
class Task:
    """One op: the TARGET that names it, its place among what that names, and how its samples are made."""

    text: str
    place: int
    op: str
    checks: tuple[str, ...]
    device: str
    dtype: str | None
    seed: int


@dataclass(slots=True)
class Outcome:
    """What is known of a task so far."""

    results: list[Result] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    check: tuple[str, str, str] = ("all checks", "", "")


@dataclass(slots=True)
class Worker:
    """A process, our end of its pipe, and the place of the task that it is at."""

    process: SpawnProcess
    pipe: Connection
    place: int


class Workers:
    """Up to `most` processes that work on tasks.

    Args:
        tasks: what is to be done.
        most: how many processes there may be at once.
        on_result: told of each result as it comes.
    """

    def __init__(self, tasks: Sequence[Task], most: int, on_result: Callable[[Result], None] | None) -> None:
        self._tasks = tasks
        self._most = most
        self._on_result = on_result or (lambda _: None)
        self._outcomes = [Outcome() for _ in tasks]
        self._waiting = list(range(len(tasks)))
        self._workers: list[Worker] = []

    def run(self) -> None:
        """Works until every task has ended, or until an exception such as Ctrl-C; no process is left behind."""
        context = multiprocessing.get_context("spawn")
        try:
            while self._waiting or self._workers:
                while self._waiting and len(self._workers) < self._most:
                    self._workers.append(self._start(context))
                ready = wait([worker.pipe for worker in self._workers], timeout=1)
                for worker in tuple(self._workers):
                    if worker.pipe in ready:
                        self._hear(worker)
                    elif not worker.process.is_alive() and not worker.pipe.poll():
                        self._bury(worker)  # a process of its own, such as a compiler's, may hold the pipe open
        finally:
            for worker in self._workers:
                self._listen_once_more(worker)
                worker.process.kill()
                worker.process.join()

    def report(self) -> Report:
        """What was found so far, in the order of the tasks."""
        results = tuple(result for outcome in self._outcomes for result in outcome.results)
        return Report(results, {op: text for outcome in self._outcomes for op, text in outcome.sources.items()})

    def _start(self, context: SpawnContext) -> Worker:
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, self._most))
        process.start()
        theirs.close()
        worker = Worker(process, ours, -1)
        self._give(worker)
        return worker

    def _give(self, worker: Worker) -> None:
        """Gives a process the next task, or None where there is no more."""
        worker.place = self._waiting.pop(0) if self._waiting else -1
        with contextlib.suppress(OSError):  # it is dead, which is heard next
            worker.pipe.send(None if worker.place < 0 else self._tasks[worker.place])

    def _hear(self, worker: Worker) -> None:
        try:
            kind, value = worker.pipe.recv()
        except (EOFError, OSError):
            self._bury(worker)
            return
        outcome = self._outcomes[worker.place]
        if kind == "check":
            outcome.check = value
        elif kind == "result":
            self._keep(worker, value)
        elif kind == "failure":
            self._keep(worker, Result(self._tasks[worker.place].op, "all checks", "all samples", "error", value))
            self._give(worker)
        else:
            outcome.sources.update(value)
            self._give(worker)

    def _listen_once_more(self, worker: Worker) -> None:
        """Keeps the results that a process has told of and nobody has heard, before it is killed."""
        with contextlib.suppress(EOFError, OSError):
            for _ in range(MOST_UNHEARD):
                if not worker.pipe.poll():
                    return
                kind, value = worker.pipe.recv()
                if kind == "result":
                    self._keep(worker, value)

    def _bury(self, worker: Worker) -> None:
        self._workers.remove(worker)
        worker.process.join()
        worker.pipe.close()
        if worker.place >= 0:
            self._keep(worker, self._died(worker))

    def _keep(self, worker: Worker, result: Result) -> None:
        self._outcomes[worker.place].results.append(result)
        self._on_result(result)

    def _died(self, worker: Worker) -> Result:
        """The result of an op whose process died: the signal, the check, and the last sample that was done."""
        task, outcome = self._tasks[worker.place], self._outcomes[worker.place]
        check, code, group = outcome.check
        done = [result.sample for result in outcome.results if result.check == check]
        sample = f"the sample after '{done[-1]}'" if done else "its first sample"
        option = f" --checks {check}" if code else ""
        message = (
            f"the process {_end_of(worker.process.exitcode)}; the checks that follow were not run\n"
            f"to see it happen: custom-autograd check {task.text}{option} -j 1"
        )
        return Result(task.op, check, sample, "error", message, code=code, seed=task.seed, group=group)


def work(pipe: Connection, processes: int) -> None:
    """What a process does: task after task, until it is given None.

    Args:
        pipe: tasks come in, what is told goes out.
        processes: how many share the cores of the machine.
    """
    import torch  # heavy

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C ends
    faulthandler.enable()
    torch.set_num_threads(max(1, torch.get_num_threads() // processes))
    while (task := pipe.recv()) is not None:
        for told in _perform(task, pipe):
            pipe.send(told)


def _perform(task: Task, pipe: Connection) -> Iterator[Told]:
    """Checks one op; what it finds is told at once, so that it survives the process."""
    from custom_autograd.checking import case_of, select_checks  # imports torch
    from custom_autograd.checks import runner  # imports torch
    from custom_autograd.checks.loading import load  # imports torch
    from custom_autograd.cli.options import dtype_of  # imports torch
    from custom_autograd.core.errors import CheckError  # imports torch

    def tell_check(check: "Check") -> None:
        pipe.send(("check", (check.name, check.code, check.group)))

    def tell_result(result: Result) -> None:
        pipe.send(("result", result))

    try:
        value = load(task.text)[task.place].value
        case = case_of(value, device=task.device, dtype=dtype_of(task.dtype), seed=task.seed)
        checks = select_checks(task.checks)
    except CheckError as error:
        yield "failure", str(error)
        return
    report = runner.run([case], checks, seed=task.seed, on_result=tell_result, on_check=tell_check)
    yield "end", dict(report.sources)


def _end_of(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended by itself, with exit code {code}"
    names = {number.value: number.name for number in signal.Signals}
    name = names.get(-code, f"signal {-code}")
    return f"was ended by {name}" + (f", {MEANINGS[name]}" if name in MEANINGS else "")


MOST_UNHEARD = 1000
"""How many words of a process are listened to after Ctrl-C: it goes on talking until it is killed."""

MEANINGS = {
    "SIGABRT": "which a failed assertion in native code raises",
    "SIGFPE": "which a division by zero in native code raises",
    "SIGILL": "which an instruction that this processor does not know raises",
    "SIGKILL": "which the system sends where memory runs out",
    "SIGSEGV": "a segmentation fault",
}
