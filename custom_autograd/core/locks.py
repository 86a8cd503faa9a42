"""A lock between threads that a forked child can use, whichever thread of the parent held it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, cast


class ThreadLock(type(threading.RLock())):  # type: ignore[misc]  # typeshed calls it final; it is not
    """A lock that its holder may take again, and that is free in a forked child.

    A thread that held it at the fork is not there. A holder takes it again if a finalizer, which runs at any moment,
    does.

    Args:
        in_child: called in a forked child once all locks are free.

    Attributes:
        was_held: another thread of the parent held it at the fork, so that what it guards may be half made.
    """

    def __init__(self, in_child: Callable[[], object] = lambda: None) -> None:
        self.was_held, self.in_child = False, in_child
        _LOCKS.add(self)

    def renew(self) -> None:
        """Make it free in a forked child, unless the thread that forked holds it."""
        self.was_held = not self.acquire(blocking=False)
        if self.was_held:
            cast(Any, self)._at_fork_reinit()  # noqa: SLF001 - as `threading` does with its locks (Any: no stub has it)
        else:
            self.release()


def thread_lock(name: str) -> ThreadLock:
    """Return the lock of that name."""
    return _NAMED.setdefault(name, ThreadLock())


def _renew_locks() -> None:
    locks = list(_LOCKS)
    for lock in locks:
        lock.renew()
    for lock in locks:
        lock.in_child()


_LOCKS: weakref.WeakSet[ThreadLock] = weakref.WeakSet()  # a fork has to find all of them
_NAMED: dict[str, ThreadLock] = {}  # threads that use one file of the process have to share its lock
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
