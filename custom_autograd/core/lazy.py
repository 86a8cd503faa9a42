"""Attributes that are computed when they are first read, and public names that are loaded when they are first used."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Lazy(Generic[T]):
    """Computes an attribute of an object that has a `__dict__`; two threads may both compute it.

    `functools.cached_property` of Python 3.12. Earlier ones take a lock each time, which costs 1.5 us, and an op reads
    twenty; in a child that is forked while another thread holds the lock, nothing ever frees it.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:  # Any: an object of the class that has the attribute
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> T:  # Any: as above
        found: T = self._compute(instance)
        vars(instance)[self._name] = found
        return found


class Once(Lazy[T]):
    """Computes an attribute of an object under that object's lock, where `Lazy` may do so twice.

    The object has a `lock`, which may be held by this thread.
    """

    def __get__(self, instance: Any, owner: type) -> T:  # Any: an object of the class that has the attribute
        with instance.lock:
            values = vars(instance)
            if self._name not in values:
                values[self._name] = self._compute(instance)
            found: T = values[self._name]
            return found


class PerFunction:
    """Makes something of each function, once; it is found by id, since some functions cannot be hashed.

    Any: the functions, and what is made of them, are callables of any signature.
    """

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make
        self._made: dict[int, tuple[Any, Any]] = {}  # with the function, whose id nothing else may have

    def __call__(self, function: Any) -> Any:
        """Return what is made of a function; that itself, if it was made here."""
        found = self._made.get(id(function))
        if found is None:
            if any(function is made for _, made in list(self._made.values())):  # a list: other threads may add to it
                return function
            found = self._made[id(function)] = function, self._make(function)
        return found[1]


def loader_of(package: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package, from the public names in each of its modules, parted by spaces."""
    homes = {name: module for module, listed in names.items() for name in listed.split()}

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # The first import makes enough objects for one collection of all that torch has made (166,000 objects), which
        # takes twice as long as the import itself.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        finally:
            if was_enabled:
                gc.enable()

    return load
