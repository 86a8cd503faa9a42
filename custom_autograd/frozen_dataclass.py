"""Frozen dataclasses that take a fifth of the time to define: nothing is compiled for most classes.

Python's `dataclass` compiles six methods for a frozen class, one by one, in 0.35 to 0.5 ms: for the 70 classes that the
decorator `custom_op` loads, that was more than half of the time of its import. Here all classes share five of the six,
and classes with as many fields share the code of `__init__`, under other names. Type checkers see Python's `dataclass`,
and `fields`, `replace`, `copy` and `pickle` work as with it.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
from collections.abc import Callable
from reprlib import recursive_repr
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: Literal[True], slots: bool = False, eq: bool = True) -> Callable[[type[T]], type[T]]:
        """Return what `dataclasses.dataclass` returns for these arguments; a subclass with fields needs it, too."""
        return functools.partial(_define, has_slots=slots, has_eq=eq)


def _define(cls: type[T], *, has_slots: bool, has_eq: bool) -> type[T]:
    defined = dataclasses.dataclass(init=False, repr=False, eq=False, slots=has_slots)(cls)
    for name, method in {**SHARED, **(SHARED_IF_EQ if has_eq else {})}.items():
        if vars(defined).get(name) is None:  # a class with an __eq__ has None as its __hash__
            setattr(defined, name, method)
    setattr(defined, "__init__", _init_of(defined))  # noqa: B010 - type checkers refuse to assign a method
    return defined


def _init_of(cls: type) -> FunctionType:
    """Return `__init__`: a function whose code is that of all classes with as many fields, under its own names."""
    fields = dataclasses.fields(cls)
    names = [field.name for field in fields]
    _check_order(fields)
    if any(field.default_factory is not MISSING for field in fields):
        return _with_factories(cls)
    code = _code_for(len(fields))
    own = dict(zip(code.co_varnames, ["self", *names], strict=True))
    renamed = code.replace(
        co_varnames=tuple(own.values()),
        co_consts=tuple([own.get(one, one) if isinstance(one, str) else one for one in code.co_consts]),
    )
    defaults = tuple([field.default for field in fields if field.default is not MISSING])
    scope = {"__name__": cls.__module__, "__builtins__": vars(builtins)}  # Dynamo reads both
    return _named(FunctionType(renamed, scope, "__init__", defaults), cls)


def _check_order(fields: tuple[dataclasses.Field[Any], ...]) -> None:
    """Refuse a field without a default after one that has one: Python gives defaults to the last parameters."""
    has_default = [field.default is not MISSING or field.default_factory is not MISSING for field in fields]
    for index in range(1, len(fields)):
        if has_default[index - 1] and not has_default[index]:
            names = fields[index].name, fields[index - 1].name
            raise TypeError("field {!r} without a default follows {!r}, which has one".format(*names))


@functools.cache
def _code_for(count: int) -> CodeType:
    """Return the code of `__init__` for a number of fields, which is compiled once."""
    names = [f"field_{index}" for index in range(count)]
    namespace: dict[str, Any] = {}
    exec(_source([(name, name) for name in names], names), namespace)
    code: CodeType = namespace["__init__"].__code__
    return code


def _with_factories(cls: type) -> FunctionType:
    """Return an `__init__` of its own, which calls the factories of fields that are not given."""
    namespace: dict[str, Any] = {"__name__": cls.__module__, "_missing": MISSING}
    parameters, values = [], []
    for field in dataclasses.fields(cls):
        name, value = field.name, field.name
        if field.default is not MISSING:
            parameters.append(f"{name}=_default_{name}")
            namespace[f"_default_{name}"] = field.default
        elif field.default_factory is not MISSING:
            parameters.append(f"{name}=_missing")
            namespace[f"_factory_{name}"] = field.default_factory
            value = f"_factory_{name}() if {name} is _missing else {name}"
        else:
            parameters.append(name)
        values.append((name, value))
    exec(_source(values, parameters), namespace)
    return _named(namespace["__init__"], cls)


def _source(values: list[tuple[str, str]], parameters: list[str]) -> str:
    lines = [f"    object.__setattr__(self, '{name}', {value})" for name, value in values]  # so Dynamo can trace it
    return "\n".join([f"def __init__({', '.join(['self', *parameters])}):", *lines, "    return None"])


def _named(init: FunctionType, cls: type) -> FunctionType:
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _values(self: Any) -> tuple[Any, ...]:  # Any here and below: an instance of any class, and its fields
    return tuple([getattr(self, name) for name in self.__match_args__])


def _eq(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


@recursive_repr()
def _repr(self: Any) -> str:
    shown = [f"{name}={getattr(self, name)!r}" for name in self.__match_args__]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _setattr(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _setstate(self: Any, state: tuple[Any, ...]) -> None:
    for name, value in zip(self.__match_args__, state, strict=True):
        object.__setattr__(self, name, value)


MISSING = dataclasses.MISSING
SHARED_IF_EQ: dict[str, Callable[..., Any]] = {"__eq__": _eq, "__hash__": _hash}
SHARED: dict[str, Callable[..., Any]] = {
    "__repr__": _repr,
    "__setattr__": _setattr,
    "__delattr__": _delattr,
    "__getstate__": _values,
    "__setstate__": _setstate,
}
