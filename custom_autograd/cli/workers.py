"""custom-autograd check: every op in one of N processes, so that a crash in a kernel ends one op and not the run.

A process loads the TARGET text itself, and checks one op after another. It reports each check that begins, each
result, and the end of each op; where it dies before that, the op gets a result that says so, and the ops that remain
get a new process.
"""

import contextlib
import faulthandler
import itertools
import multiprocessing
import signal
import tempfile
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import TypeAlias

from custom_autograd.cli.terminal import Advance
from custom_autograd.verification.isolation.crashes import Crash, Heard, Progress
from custom_autograd.verification.report import Report, Result

Told: TypeAlias = tuple[str, object]
"""What a process sends: ("told", what `Heard` takes in), ("end", None) after an op, or ("failure", a text)."""

ENDS = ("end", "failure")


@dataclass(frozen=True, slots=True)
class Task:
    """One op: the TARGET that names it, its position among what that names, and how its samples are made.

    The TARGET `alone` names it and no other; empty if that is the same.
    """

    text: str
    position: int
    op: str
    checks: tuple[str, ...]
    device: str
    dtype: str | None
    seed: int
    is_noting: bool = False
    alone: str = ""


@dataclass(slots=True)
class WorkerOutcome:
    """Facts about a task so far: the messages of its process, and the results, in order."""

    heard: Heard = field(default_factory=Heard)
    results: list[Result] = field(default_factory=list)


@dataclass(slots=True)
class Worker:
    """A process, our end of its pipe, the file that faulthandler writes to, and the position of its task."""

    process: SpawnProcess
    pipe: Connection
    trace: Path
    position: int = -1

    def read_trace(self) -> str:
        """Return what faulthandler wrote."""
        return self.trace.read_text(encoding="utf-8", errors="replace") if self.trace.exists() else ""


class Workers:
    """Up to `most` processes that work on tasks.

    Args:
        tasks: what is to be done.
        most: how many processes there may be at once.
        advance: called as each check begins, and with each result.
    """

    def __init__(self, tasks: Sequence[Task], most: int, advance: Advance | None) -> None:
        self._tasks = tasks
        self._most = most
        self._advance = advance or (lambda *_: None)
        self._outcomes = [WorkerOutcome() for _ in tasks]
        self._waiting = list(range(len(tasks)))
        self._workers: list[Worker] = []
        self._folder = tempfile.TemporaryDirectory()
        self._numbers = itertools.count()

    def run(self) -> None:
        """Work until every task has ended, or until an exception such as Ctrl-C; no process is left behind."""
        context = multiprocessing.get_context("spawn")
        try:
            while self._waiting or self._workers:
                while self._waiting and len(self._workers) < self._most:
                    self._workers.append(self._start(context))
                    self._give(self._workers[-1])
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
            self._folder.cleanup()

    def report(self) -> Report:
        """Return what was found so far, in the order of the tasks."""
        results = tuple(result for outcome in self._outcomes for result in outcome.results)
        return Report(results, {op: text for outcome in self._outcomes for op, text in outcome.heard.sources.items()})

    def _start(self, context: SpawnContext, task: Task | None = None) -> Worker:
        ours, theirs = context.Pipe()
        trace = Path(self._folder.name) / str(next(self._numbers))
        process = context.Process(target=work, args=(theirs, self._most, str(trace)))
        process.start()
        theirs.close()
        if task is not None:
            with contextlib.suppress(OSError):  # it is dead, which is heard next
                ours.send(task)
        return Worker(process, ours, trace)

    def _give(self, worker: Worker) -> None:
        """Give a process the next task, or None if there is no more."""
        worker.position = self._waiting.pop(0) if self._waiting else -1
        with contextlib.suppress(OSError):  # it is dead, which is heard next
            worker.pipe.send(None if worker.position < 0 else self._tasks[worker.position])

    def _hear(self, worker: Worker) -> None:
        try:
            kind, value = worker.pipe.recv()
        except (EOFError, OSError):
            self._bury(worker)
            return
        if kind == "failure":
            self._keep(worker, Result(self._tasks[worker.position].op, "all checks", "all samples", "error", value))
        elif isinstance(value, Result):
            self._keep(worker, value)
        elif kind == "told":
            self._outcomes[worker.position].heard.hear(value)
            if isinstance(value, Progress):
                self._advance(self._tasks[worker.position].op, value.check, 0)
        if kind in ENDS:
            self._give(worker)

    def _listen_once_more(self, worker: Worker) -> None:
        """Keep the unread results that a process has sent, before it is killed."""
        with contextlib.suppress(EOFError, OSError):
            for _ in range(MOST_UNHEARD):
                if not worker.pipe.poll():
                    return
                _, value = worker.pipe.recv()
                if isinstance(value, Result):
                    self._keep(worker, value)

    def _bury(self, worker: Worker) -> None:
        self._workers.remove(worker)
        worker.process.join()
        worker.pipe.close()
        if worker.position >= 0:
            self._keep(worker, self._died(worker))

    def _keep(self, worker: Worker, result: Result) -> None:
        self._outcomes[worker.position].results.append(result)
        self._advance(result.op, result.check, 1)

    def _died(self, worker: Worker) -> Result:
        """Return the result of an op whose process died; its check runs once more, alone, to learn which call it is."""
        task, progress = self._tasks[worker.position], self._outcomes[worker.position].heard.progress
        again = replace(task, checks=(progress.check,) if progress.code else task.checks, is_noting=True)
        call = self._last_call(again)
        code = worker.process.exitcode
        return Crash(task.op, progress, code, task.seed, worker.read_trace(), call, _command(task, progress)).result()

    def _last_call(self, task: Task) -> str | None:
        """Return the last call that begins before a process dies of a task; None if it does not die."""
        worker = self._start(multiprocessing.get_context("spawn"), task)
        heard, is_alive = Heard(), True
        try:
            while is_alive:
                while worker.pipe.poll(1):
                    kind, value = worker.pipe.recv()
                    if kind in ENDS:
                        return None
                    heard.hear(value)
                is_alive = worker.process.is_alive()
        except (EOFError, OSError):
            pass
        finally:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()
        return heard.call


def work(pipe: Connection, processes: int, trace: str) -> None:
    """Check one op after another, until None comes instead of a task.

    Args:
        pipe: tasks come in, what is told goes out.
        processes: how many share the cores of the machine.
        trace: the file that the stack of Python is written to if the process dies.
    """
    import torch  # heavy

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C ends
    with open(trace, "w", encoding="utf-8") as stream:
        faulthandler.enable(file=stream, all_threads=False)
        torch.set_num_threads(max(1, torch.get_num_threads() // max(1, processes)))
        try:
            while (task := pipe.recv()) is not None:
                pipe.send(_perform(task, pipe))
        except BaseException:
            traceback.print_exc(limit=MOST_FRAMES, file=stream)
            raise


def _perform(task: Task, pipe: Connection) -> Told:
    """Check one op; what it finds is told at once, so that it survives the process."""
    from custom_autograd.cli.options import dtype_of  # imports torch
    from custom_autograd.core.errors import CheckError  # imports torch
    from custom_autograd.values.random_state import synchronize_accelerators  # imports torch
    from custom_autograd.verification.check import case_of, select_checks  # imports torch
    from custom_autograd.verification.harness.op_files import load  # imports torch
    from custom_autograd.verification.isolation.running import perform  # imports torch

    lock = threading.Lock()

    def tell(value: object) -> None:
        with lock:  # calls are told by every thread that makes one
            pipe.send(("told", value))

    try:
        value = load(task.text)[task.position].value
        case = case_of(value, device=task.device, dtype=dtype_of(task.dtype), seed=task.seed)
        checks = select_checks(task.checks)
    except CheckError as error:
        return "failure", str(error)
    perform(case, checks, task.seed, tell, is_noting=task.is_noting)
    synchronize_accelerators()  # raises if a kernel broke the device, which would fail the next op in this process
    return "end", None


def _command(task: Task, progress: Progress) -> str:
    """Return the command that runs the task on its op."""
    options = {"--checks": progress.check if progress.code else "", "--dtype": task.dtype or ""}
    options["--device"] = "" if task.device == "cpu" else task.device
    options["--seed"] = str(task.seed) if task.seed else ""
    words = [f"{option} {value}" for option, value in options.items() if value]
    return " ".join(["custom-autograd check", task.alone or task.text, *words])


MOST_FRAMES = -3
"""The last frames of an exception that ends a process."""

MOST_UNHEARD = 1000
"""How many words of a process are listened to after Ctrl-C: it goes on talking until it is killed."""
