"""A value of a thread or asyncio task that also counts in the backward passes that start there.

Autograd runs a backward on a GPU in another thread, which a ContextVar does not reach: torch's own thread-local state
does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

from custom_autograd.torch_private import thread_values

T = TypeVar("T")
NOTHING = (0, None)
"""The value of a thread that has none: no owner."""


class HandedOn(Generic[T]):
    """A value that contexts set; they nest.

    Args:
        key: the name, unique in the process.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._here: ContextVar[T | None] = ContextVar(key, default=None)

    def get(self) -> T | None:
        """Return the value of this thread or task, else of the one that started this backward; None if neither has."""
        value = self._here.get()
        if value is not None:
            return value
        owner, value = thread_values.get(self._key, NOTHING)
        return None if owner == threading.get_ident() else value  # of another task in this thread

    @contextmanager
    def set(self, value: T) -> Iterator[None]:
        """Set the value while the context is open."""
        token, before = self._here.set(value), thread_values.get(self._key, NOTHING)
        thread_values.put(self._key, (threading.get_ident(), value))
        try:
            yield
        finally:
            self._here.reset(token)
            thread_values.put_back(self._key, before, NOTHING)
