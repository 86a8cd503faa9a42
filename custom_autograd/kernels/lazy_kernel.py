"""A kernel that is made at its first call, or replaced by its fallback where it cannot be made here."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from custom_autograd.core.errors import KernelUnavailable, KernelWarning
from custom_autograd.core.locations import stacklevel_of_caller
from custom_autograd.core.locks import ThreadLock


class LazyKernel(ABC):
    """A kernel that is made at its first call; safe in threads and after a fork.

    Attributes:
        fallback: what serves the calls where the kernel cannot be made; None for nothing.
        unavailable_because: why it cannot be made here; empty unless that was found out.
    """

    def __init__(self, name: str, fallback: Callable[..., Any] | None) -> None:
        self.fallback = fallback
        self.unavailable_because = ""
        self._name = name
        self._call: Callable[..., Any] = self._first_call
        self._lock = ThreadLock()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:  # Any: what the op's schema declares
        """Run the kernel, or its fallback where it cannot be made."""
        return self._call(*args, **kwargs)

    @property
    def is_replaced(self) -> bool:
        """Return True if the fallback serves the calls, because the kernel could not be made."""
        return self.fallback is not None and self._call == self.fallback

    @abstractmethod
    def load(self) -> Callable[..., Any]:
        """Return what serves the calls, made if need be.

        Raises:
            KernelUnavailable: it cannot be made here.
        """

    def _first_call(self, /, *args: Any, **kwargs: Any) -> Any:
        reason = None
        with self._lock:
            if self._call == self._first_call:
                try:
                    self._call = self.load()
                except KernelUnavailable as error:
                    reason = error
                    self._call = self._without(error)
        if reason is not None:
            self._warn(reason)
        return self._call(*args, **kwargs)

    def _without(self, reason: KernelUnavailable) -> Callable[..., Any]:
        """Return the fallback, or what raises the reason at every call."""
        self.unavailable_because = str(reason)
        return self._refuse if self.fallback is None else self.fallback

    def _warn(self, reason: KernelUnavailable) -> None:
        """Warn that the fallback runs; without the lock: who shows a warning may call kernels, and may raise."""
        if self.fallback is not None:
            text = f"{reason}\n  meanwhile  '{self._name}' runs in its fallback, more slowly"
            warnings.warn(text, KernelWarning, stacklevel=stacklevel_of_caller())

    def _refuse(self, /, *args: Any, **kwargs: Any) -> None:
        """Raise why the kernel cannot be made here, at every call."""
        raise KernelUnavailable(self.unavailable_because)
