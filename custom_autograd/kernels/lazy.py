"""A kernel that is made at its first call, or replaced by its fallback where it cannot be made here.

first call -> load() -> what it returns serves every call from now on
              raises KernelUnavailable -> one warning, then fallback(...) from now on
                                          no fallback: every call raises the reason, and nothing is tried again
"""

from __future__ import annotations

import os
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from custom_autograd.core.errors import KernelUnavailable, KernelWarning


class LazyKernel(ABC):
    """A kernel that is made at its first call; safe in threads and after a fork."""

    def __init__(self, name: str, fallback: Callable[..., Any] | None) -> None:
        self.fallback = fallback
        self._name = name
        self._call: Callable[..., Any] = self._first_call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # Any: what the op's schema says
        """Runs the kernel, or its fallback where it cannot be made."""
        return self._call(*args, **kwargs)

    @property
    def is_replaced(self) -> bool:
        """Whether the fallback serves the calls, because the kernel could not be made."""
        return self.fallback is not None and self._call == self.fallback

    @abstractmethod
    def load(self) -> Callable[..., Any]:
        """What serves the calls, made if need be.

        Raises:
            KernelUnavailable: it cannot be made here.
        """

    def _first_call(self, *args: Any, **kwargs: Any) -> Any:
        with loading:
            if self._call == self._first_call:
                self._call = self._chosen()
        return self._call(*args, **kwargs)

    def _chosen(self) -> Callable[..., Any]:
        """The kernel; or its fallback after a warning; or what raises the reason, so that it is not made again."""
        try:
            return self.load()
        except KernelUnavailable as error:
            reason = str(error)
        if self.fallback is None:
            return Refusal(reason)
        advice = f"\n  meanwhile  '{self._name}' runs in its fallback, more slowly"
        self._call = self.fallback  # before the warning, which may be turned into an exception
        warnings.warn(reason + advice, KernelWarning, stacklevel=4)
        return self.fallback


class Refusal:
    """Raises why a kernel is not available, at every call."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __call__(self, *args: Any, **kwargs: Any) -> None:  # Any: whatever the kernel would have been given
        """Raises the reason."""
        raise KernelUnavailable(self.reason)


class ThreadLock:
    """A lock between threads that is free in a forked child: whoever held it at the fork is not there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def _renew(self) -> None:
        self._lock = threading.Lock()


loading = ThreadLock()
