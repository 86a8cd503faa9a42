"""Records launches of Triton kernels in a graph instead of running them, in one thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_are_recorded: ContextVar[bool] = ContextVar("are_recorded", default=False)


def are_recorded() -> bool:
    """Return True while a kernel is traced into a graph."""
    return _are_recorded.get()


def is_interpreted() -> bool:
    """Return True if Triton's interpreter runs kernels: no graph can hold their launches then."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@contextmanager
def recorded() -> Iterator[None]:
    """Record launches while the context is open."""
    token = _are_recorded.set(True)
    try:
        yield
    finally:
        _are_recorded.reset(token)
