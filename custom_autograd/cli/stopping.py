"""Ends a command alike by Ctrl-C and by SIGTERM, which clusters, containers and CI services send: with its findings."""

import contextlib
import signal
import threading
from collections.abc import Iterator


class Terminated(KeyboardInterrupt):
    """SIGTERM has arrived."""


@contextlib.contextmanager
def sigterm_raises() -> Iterator[None]:
    """Let SIGTERM raise Terminated inside, if this is the main thread, the only one that may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _raise_terminated(*_: object) -> None:
    raise Terminated


def stopped_by(error: KeyboardInterrupt) -> str:
    """Return what ended a command, in words."""
    return "stopped by SIGTERM" if isinstance(error, Terminated) else "stopped by Ctrl-C"


def exit_code(error: KeyboardInterrupt) -> int:
    """Return 128 plus the number of the signal, as shells do."""
    return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)
