"""A lock between threads that a forked child can use, whichever thread of the parent held it."""

from __future__ import annotations

import os
import threading
import weakref


class ThreadLock:
    """A lock that its holder may take again, and that is free in a forked child.

    A thread that held it at the fork is not there. A holder takes it again if a finalizer, which runs at any moment,
    does.

    Attributes:
        was_held: another thread of the parent held it at the fork, so that what it guards may be half made.
    """

    def __init__(self) -> None:
        self.was_held = False
        self._lock = threading.RLock()
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Make it free in a forked child, unless the thread that forked holds it."""
        self.was_held = not self._lock.acquire(blocking=False)
        if self.was_held:
            self._lock = threading.RLock()
        else:
            self._lock.release()


def thread_lock(name: str) -> ThreadLock:
    """Return the lock of that name."""
    return _NAMED.setdefault(name, ThreadLock())


def _renew_locks() -> None:
    for lock in _LOCKS:
        lock.renew()


_LOCKS: weakref.WeakSet[ThreadLock] = weakref.WeakSet()  # a fork has to find all of them
_NAMED: dict[str, ThreadLock] = {}  # threads that use one file of the process have to share its lock
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
