"""Methods that register a function: they take it as their last positional argument, or are its decorator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

F = TypeVar("F", bound=Callable[..., Any])
Q = ParamSpec("Q")
X_contra = TypeVar("X_contra", contravariant=True)


class Registrar(Protocol[Q]):
    """A bound method that takes a function, or nothing where it is a decorator."""

    @overload
    def __call__(self, fn: F, /, *args: Q.args, **kwargs: Q.kwargs) -> F: ...
    @overload
    def __call__(self, fn: None = None, /, *args: Q.args, **kwargs: Q.kwargs) -> Callable[[F], F]: ...


class RegistrarFor(Protocol[X_contra, Q]):
    """A bound method that takes something that the function is for, and the function, or is its decorator."""

    @overload
    def __call__(self, what: X_contra, fn: F, /, *args: Q.args, **kwargs: Q.kwargs) -> F: ...
    @overload
    def __call__(self, what: X_contra, fn: None = None, /, *args: Q.args, **kwargs: Q.kwargs) -> Callable[[F], F]: ...


class Method(Protocol[Q]):
    """A `Registrar` as an attribute of a class."""

    def __get__(self, instance: object, owner: type | None = None) -> Registrar[Q]: ...


class MethodFor(Protocol[X_contra, Q]):
    """A `RegistrarFor` as an attribute of a class."""

    def __get__(self, instance: object, owner: type | None = None) -> RegistrarFor[X_contra, Q]: ...


def or_decorator(method: Callable[Concatenate[Any, F, Q], F]) -> Method[Q]:
    """Return a method `(self, fn, ...)` that is a decorator where `fn` is left out."""
    return cast("Method[Q]", _or_decorator(method))


def or_decorator_for(method: Callable[Concatenate[Any, X_contra, F, Q], F]) -> MethodFor[X_contra, Q]:
    """Return a method `(self, what, fn, ...)` that is a decorator where `fn` is left out."""
    return cast("MethodFor[X_contra, Q]", _or_decorator(method))


def _or_decorator(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method whose last positional argument may be left out; wrong arguments are refused at once."""
    signature = inspect.signature(method)
    *before, last = [name for name, one in signature.parameters.items() if one.kind is not one.KEYWORD_ONLY]
    parameters = [
        one.replace(default=None, annotation=f"{one.annotation} | None") if name == last else one
        for name, one in signature.parameters.items()
    ]
    signature = signature.replace(parameters=parameters)
    names = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is not one.empty}
    is_plain = len(before) + 1 + len(names) == len(parameters)

    @functools.wraps(method)
    def registers(*given: Any, **options: Any) -> Any:
        if is_plain and len(given) == len(before) + 1 and given[-1] is not None and options.keys() <= names:
            return method(*given, **options)
        try:
            function = signature.bind(*given, **options).arguments.get(last)
        except TypeError as error:
            raise TypeError(f"{method.__qualname__}(): {error}") from None
        if function is None:
            return functools.partial(method, *given[: len(before)], **options)
        return method(*given, **options)

    registers.__signature__ = signature  # type: ignore[attr-defined]
    del registers.__wrapped__  # Sphinx reads defaults there, and the last has none
    return registers
