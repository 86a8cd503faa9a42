"""Work in a forked process, and when that is sound: a fork copies one thread, and the locks that the others hold.

A process is forked only if
- it runs on Linux, no accelerator has been initialised, and no library that forbids it is loaded;
- every other thread of Python waits in the standard library, so that it holds no lock of torch's;
- no mode of torch is active, because modes belong to a thread, and no debugger or tracer is.
A new thread forks, and is the main thread of the child: the threads of libgomp belong to the thread that started them,
and a thread that had some would wait for them in the child for ever. The child also tries one backward first, which
torch refuses where the threads of its engine are gone.
"""

import contextlib
import contextvars
import faulthandler
import os
import pickle
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, NoReturn, TypeAlias

import torch

from custom_autograd.torch_private import guards
from custom_autograd.values.random_state import accelerators_in_use

Tell: TypeAlias = Callable[[object], None]
"""Sends one picklable object to the parent."""


class CannotForkError(Exception):
    """No child can be forked, or none that works: another thread is at work, or torch's own were lost in the fork."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a child: None for the code if it finished its work, and what faulthandler wrote."""

    exit_code: int | None
    trace: str = ""


def is_sound() -> bool:
    """Return True if a forked process can do the same work as this one."""
    if sys.platform != "linux" or sys.gettrace() is not None or any(name in sys.modules for name in UNSAFE):
        return False
    has_modes = guards.torch_function_modes() or guards.torch_dispatch_modes() or torch.is_inference_mode_enabled()
    has_modes = has_modes or torch.is_autocast_enabled("cpu")
    return not has_modes and not accelerators_in_use() and all(map(_is_waiting, _other_threads()))


def run_forked(work: Callable[[Tell], None], hear: Tell) -> Ending:
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
    ours, theirs = Pipe(duplex=False)
    life, life_of_parent = Pipe(duplex=False)
    with ours, theirs, life, life_of_parent, tempfile.TemporaryFile() as trace:
        _flush()
        threads = torch.get_num_threads()

        def begin() -> NoReturn:
            life_of_parent.close()
            threading.Thread(target=_end_with_parent, args=(life,), daemon=True).start()
            _be_child(work, theirs, trace, threads)

        child = _fork(begin)
        theirs.close()
        status = _listen(child, ours, hear)
        trace.seek(0)
        return Ending(status, trace.read().decode(errors="replace"))


def _listen(child: int, pipe: Connection, hear: Tell) -> int | None:
    """Read all messages of a child, and return its exit code; None if it reported that it finished."""
    is_finished = False
    try:
        while True:
            kind, value = _receive(child, pipe)
            if kind == "told":
                hear(value)
            elif isinstance(value, BaseException):
                raise value
            is_finished |= kind == "finished"
            if kind == "ended":
                break
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    return None if is_finished else os.waitstatus_to_exitcode(status)


def _receive(child: int, pipe: Connection) -> "tuple[str, object]":
    """Return the next message of a child: a process that it started may hold the pipe open after its end."""
    try:
        while not pipe.poll(1.0):
            ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None and not pipe.poll(0):
                return "ended", None
        found: tuple[str, object] = pipe.recv()
    except EOFError:
        return "ended", None
    return found


def _fork(begin: Callable[[], NoReturn]) -> int:
    """Fork in a new thread, which is the main thread of the child; `begin` is what the child does.

    Raises:
        CannotForkError: if another thread has begun to work meanwhile.
    """
    found: list[int] = []

    def fork() -> None:
        if not all(map(_is_waiting, _other_threads())):
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of forking with other threads, which are known to wait
            child = os.fork()
        if child == 0:
            begin()
        found.append(child)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(fork,))
    thread.start()
    thread.join()
    if not found:
        raise CannotForkError("another thread is at work")
    return found[0]


def _be_child(work: Callable[[Tell], None], pipe: Connection, trace: IO[bytes], threads: int) -> NoReturn:
    """Do the work and end, without what the parent does at its own end."""
    code, lock = 1, threading.Lock()

    def tell(value: object) -> None:
        with lock:  # a check may call an op in several threads
            pipe.send(("told", value))

    try:
        faulthandler.enable(file=trace, all_threads=False)
        torch.set_num_threads(threads)
        _require_engine()
        work(tell)
        pipe.send(("finished", None))
        code = 0
    except BaseException as error:  # noqa: BLE001 - the parent raises it
        _send_error(error, pipe)
    finally:
        _flush()
        os._exit(code)


def _flush() -> None:
    """Write out what is printed so far, so that each process prints it once."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a program without a terminal has no streams, or closed ones
            stream.flush()


def _end_with_parent(life: Connection) -> None:
    """End this process when the parent ends, whose end of the pipe the system closes."""
    with contextlib.suppress(EOFError, OSError):
        life.recv()
    os._exit(1)


def _require_engine() -> None:
    one = torch.ones(1, requires_grad=True)
    try:
        one.sum().backward()
    except RuntimeError as error:
        raise CannotForkError(str(error)) from None


def _send_error(error: BaseException, pipe: Connection) -> None:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - an error of any class, with anything in it
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        error = RuntimeError(f"a check that runs in a process of its own raises:\n{text}")
    with contextlib.suppress(OSError):
        pipe.send(("raised", error))


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
