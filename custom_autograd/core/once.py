"""Once: an attribute that is computed when it is first read, by one thread, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """Computes an attribute of an object under that object's lock; `functools.cached_property` may do so twice.

    Args:
        compute: returns the value, from the object; it has a `lock`, which may be held by this thread.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:  # Any: an object of the class that has the attribute
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> T:  # Any: as above
        with instance.lock:
            values = vars(instance)
            if self._name not in values:
                values[self._name] = self._compute(instance)
            found: T = values[self._name]
            return found
