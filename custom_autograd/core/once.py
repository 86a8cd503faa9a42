"""Once: an attribute that is computed when it is first read, by one thread, and kept."""

from __future__ import annotations

from typing import Any

from custom_autograd.core.lazy import Lazy, T


class Once(Lazy[T]):
    """Computes an attribute of an object under that object's lock, where `Lazy` may do so twice.

    The object has a `lock`, which may be held by this thread.
    """

    def __get__(self, instance: Any, owner: type) -> T:  # Any: an object of the class that has the attribute
        with instance.lock:
            values = vars(instance)
            if self._name not in values:
                return super().__get__(instance, owner)
            found: T = values[self._name]
            return found
