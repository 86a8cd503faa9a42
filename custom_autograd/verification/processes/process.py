"""Processes that work for this one: forked where that is sound, or fresh interpreters.

A fork copies one thread, and the locks that the others hold. A process is forked only if
- it runs on Linux, no accelerator has been initialised, and no library is at work that forbids it;
- every other thread of Python waits in the standard library, so that it holds no lock of torch's;
- no mode of torch is active, because modes belong to a thread, and no debugger or tracer is.
A new thread forks, and is the main thread of the child: the threads of libgomp belong to the thread that started them,
and a thread that had some would wait for them in the child for ever. The child also tries one backward first, which
torch refuses where the threads of its engine are gone.
"""

import contextlib
import contextvars
import faulthandler
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn, TypeAlias

import torch

from custom_autograd.torch_private import guards
from custom_autograd.values.random_state import accelerators_in_use


class CannotForkError(Exception):
    """No child can be forked, or none that works: another thread is at work, or torch's own were lost in the fork."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a child, which is its last message.

    Args:
        exit_code: of a process that ended early, as `multiprocessing.Process.exitcode` has it; None if it is not known,
            because the program ignores SIGCHLD, or something else in it waits for every child.
        trace: what faulthandler wrote, or the last frames of the exception.
        error: the exception that ended the work; of a fresh interpreter, one with its class and its text.
        is_finished: whether the work was done.
    """

    exit_code: int | None
    trace: str = ""
    error: BaseException | None = None
    is_finished: bool = False


@dataclass(frozen=True, slots=True)
class ParentPipe:
    """The end of a pipe that a child has; calling it sends one picklable object to the parent, from any thread."""

    pipe: Connection
    lock: "threading.Lock"

    def __call__(self, message: object) -> None:
        """Send one object."""
        with self.lock:
            self.pipe.send(message)

    def take(self) -> object:
        """Wait for an object from the parent."""
        return self.pipe.recv()


Work: TypeAlias = Callable[[ParentPipe], None]
"""Runs in a child, and is given its line; that of a fresh interpreter can be pickled."""


@dataclass(frozen=True, slots=True, eq=False)
class Child:
    """A process that was started, and our end of its pipe."""

    process: BaseProcess
    pipe: Connection
    trace: Path

    def give(self, message: object) -> None:
        """Send what the child takes from its line."""
        with contextlib.suppress(OSError):  # it is dead, which its ending shows
            self.pipe.send(message)

    def receive(self) -> object:
        """Wait for the next message; an `Ending` is the last one."""
        try:
            message = self.pipe.recv()
        except (EOFError, OSError):
            return self.bury()
        if isinstance(message, Ending):
            self.process.join()
        return message

    def bury(self) -> Ending:
        """Return how a process ended that did not send its ending."""
        self.process.join()
        trace = self.trace.read_text(encoding="utf-8", errors="replace") if self.trace.exists() else ""
        return Ending(self.process.exitcode, trace)


@contextlib.contextmanager
def started(work: Work, *, is_forked: bool = False, share: int = 1) -> Iterator[Child]:
    """Start a process, and end it on leaving.

    Args:
        work: what it does.
        is_forked: whether it is a fork of this one, rather than a fresh interpreter.
        share: how many such processes share the threads of torch.

    Raises:
        CannotForkError: if another thread has begun to work.
    """
    context = multiprocessing.get_context("fork" if is_forked else "spawn")
    ours, theirs = context.Pipe()
    threads = max(1, torch.get_num_threads() // share)
    with ours, theirs, tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace")
        arguments = (work, theirs, trace, threads, is_forked)
        process = context.Process(target=_be_child, args=arguments)  # type: ignore[attr-defined]  # both contexts have it
        (_fork if is_forked else BaseProcess.start)(process)
        theirs.close()
        try:
            yield Child(process, ours, trace)
        finally:
            process.kill()
            process.join()


def next_message(children: Iterable[Child], seconds: float = float("inf")) -> tuple[Child, object] | None:
    """Return the next message of any of the children, with the child; None if none came in time."""
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        ready = wait([child.pipe for child in children], timeout=max(0.0, min(1.0, left)))
        for child in children:
            if child.pipe in ready:
                return child, child.receive()
            # A process that it started may hold the pipe open after its end.
            if not child.process.is_alive() and not child.pipe.poll():
                return child, child.bury()
        if left <= 0:
            return None


def listen(child: Child, hear: Callable[[object], None]) -> Ending:
    """Hear every message of a child, and return its ending."""
    while True:
        found = next_message([child])
        if found is not None and isinstance(found[1], Ending):
            return found[1]
        if found is not None:
            hear(found[1])


def run_forked(work: Work, hear: Callable[[object], None]) -> Ending:
    """Run `work` in a forked process.

    Args:
        work: is given what sends an object to this process.
        hear: is given each object, in this process.

    Returns:
        How the child ended.

    Raises:
        CannotForkError: if another thread has begun to work, or torch refuses a backward in the child.
        BaseException: what `work` raises, if it can be pickled.
    """
    with started(work, is_forked=True) as child:
        ending = listen(child, hear)
    if ending.error is not None:
        raise ending.error
    return ending


def is_sound() -> bool:
    """Return True if a forked process can do the same work as this one."""
    if sys.platform != "linux" or sys.gettrace() is not None or any(name in sys.modules for name in UNSAFE):
        return False
    if multiprocessing.current_process().daemon or _has_threads_of_numba():  # the first may not have children
        return False
    has_modes = guards.torch_function_modes() or guards.torch_dispatch_modes() or torch.is_inference_mode_enabled()
    has_modes = has_modes or torch.is_autocast_enabled("cpu")
    return not has_modes and not accelerators_in_use() and all(map(_is_waiting, _other_threads()))


def _has_threads_of_numba() -> bool:
    """Return True if a parallel kernel of Numba has run on OpenMP, which ends every fork that runs another one."""
    layer = getattr(sys.modules.get("numba"), "threading_layer", None)
    with contextlib.suppress(ValueError):  # none has run
        return layer is not None and layer() == "omp"
    return False


def _fork(process: BaseProcess) -> None:
    """Start a process in a new thread, which is the main thread of the child.

    Raises:
        CannotForkError: if another thread has begun to work meanwhile.
    """

    def fork() -> None:
        if all(map(_is_waiting, _other_threads())):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of forking with other threads, which are known to wait
                process.start()

    thread = threading.Thread(target=contextvars.copy_context().run, args=(fork,))
    thread.start()
    thread.join()
    if process.pid is None:
        raise CannotForkError("another thread is at work")


def _be_child(work: Work, pipe: Connection, trace: Path, threads: int, is_forked: bool) -> NoReturn:
    """Do the work and end, without what the parent does at its own end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C ends
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # of the command line it raises
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with trace.open("w", encoding="utf-8") as stream:
        faulthandler.enable(file=stream, all_threads=False)
        torch.set_num_threads(threads)
        try:
            if is_forked:
                gc.freeze()  # the million objects of the parent, which each collection would look at again
                _require_engine()
            work(ParentPipe(pipe, threading.Lock()))
            ending = Ending(None, is_finished=True)
        except BaseException as error:  # noqa: BLE001 - the parent decides what it means
            # The class of an exception may be unknown where no fork of it runs: its text is sent.
            sent = _portable(error) if is_forked else RuntimeError(f"{type(error).__name__}: {error}")
            ending = Ending(1, "".join(traceback.format_exception(error, limit=MOST_FRAMES)), sent)
        with contextlib.suppress(OSError):
            pipe.send(ending)
        for printed in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # a program without a terminal has no streams, or closed ones
                printed.flush()
        os._exit(0 if ending.is_finished else 1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _portable(error: BaseException) -> BaseException:
    """Return an exception that can be pickled: the same, or one with its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - an error of any class, with anything in it
        text = "".join(traceback.format_exception(error))
        return RuntimeError(f"a check that runs in a process of its own raises:\n{text}")
    return error


def _require_engine() -> None:
    one = torch.ones(1, requires_grad=True, device="cpu")
    try:
        one.sum().backward()
    except RuntimeError as error:
        raise CannotForkError(str(error)) from None


def _other_threads() -> list[str]:
    """Return the module of the innermost frame of every other thread of Python."""
    own = threading.get_ident()
    frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - documented in spite of its name
    return [str(frame.f_globals.get("__name__", "")) for thread, frame in frames.items() if thread != own]


def _is_waiting(module: str) -> bool:
    root = module.partition(".")[0]
    return root in sys.stdlib_module_names or root in IDLE


IDLE = ("execnet", "tornado", "zmq")
"""Packages whose threads wait in a module of their own: those of notebooks and of pytest-xdist."""

UNSAFE = ("jax", "tensorflow")
"""Packages whose threads hold locks of native code at any time."""

MOST_FRAMES = -3
"""The last frames of an exception that ends a process."""
