"""Run a compiler's command, with the processes that it starts: they end when this process does."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Sequence

LONGEST_BUILD = 600  # seconds


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command with stdout and stderr as one text; raise OSError if it does not start or does not end."""
    started = _commands.start(command)
    watcher = _commands.running[started]
    try:
        text, _ = started.communicate(timeout=LONGEST_BUILD)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{command[0]} did not end within {LONGEST_BUILD} s") from error
    finally:
        if started.returncode is None:  # also after Ctrl-C
            _end(started)
        code = started.wait()
        _commands.running.pop(started, None)
        _dismiss(watcher)
    return subprocess.CompletedProcess(command, code, text)


def end_of(code: int | None) -> str:
    """Return how a process ended, in words."""
    if code is None or code >= 0:
        return f"ended by itself, with exit code {code}"
    names = {number.value: number.name for number in signal.Signals}
    name = names.get(-code, f"signal {-code}")
    return f"was ended by {name}" + (f", {MEANINGS[name]}" if name in MEANINGS else "")


class _Commands:
    """The commands that this process runs, each the leader of a process group, with what watches it."""

    running: dict[subprocess.Popen[str], subprocess.Popen[bytes] | None]
    _lock: threading.Lock

    def __init__(self) -> None:
        self.forget()

    def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        with self._lock:  # what has started is known, before the end looks
            if self._is_over:
                raise OSError(f"{command[0]} is not started: this process ends")
            started = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # a compiler starts others: its group has all of them
            )
            self.running[started] = _watch(started)
        return started

    def end_all(self) -> None:
        """End the commands of background threads: their results would not be used."""
        with self._lock:
            self._is_over = True
        for started in list(self.running):
            _end(started)

    def forget(self) -> None:
        """Begin with none: in a forked child, the commands of the parent are left to it."""
        for watcher in getattr(self, "running", {}).values():
            if watcher is not None and watcher.stdin is not None:
                watcher.stdin.close()
        self.running = {}
        self._is_over = False
        self._lock = threading.Lock()


def _watch(started: subprocess.Popen[str]) -> subprocess.Popen[bytes] | None:
    """Start a shell that ends a command when this process is gone; return None if there is no shell.

    It waits for a line, which `_dismiss` sends. If its input ends without one, this process was killed, or was a child
    of a fork, which runs nothing at exit.
    """
    with contextlib.suppress(OSError):
        return subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _ || kill -TERM "-$1"', "sh", str(started.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what is sent to the group of this process does not reach it
        )
    return None


def _dismiss(watcher: subprocess.Popen[bytes] | None) -> None:
    """End a watcher whose command has ended."""
    if watcher is not None:
        with contextlib.suppress(BrokenPipeError):
            watcher.communicate(b"\n")


def _end(started: subprocess.Popen[str]) -> None:
    """Ask a compiler and what it has started to end: so they remove their own temporary files."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(started.pid, signal.SIGTERM)


MEANINGS = {
    "SIGABRT": "which a failed assertion in native code raises",
    "SIGBUS": "which an access to memory that has no file behind it raises",
    "SIGFPE": "which a division by zero in native code raises",
    "SIGILL": "which an instruction that this processor does not know raises",
    "SIGKILL": "which the system sends where memory runs out",
    "SIGSEGV": "a segmentation fault",
}
_commands = _Commands()
atexit.register(_commands.end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_commands.forget)
