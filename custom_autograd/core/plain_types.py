"""Plain types of annotations, once names, marks and shapes are taken off: `type X = ...`, NewType, Final, ..."""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NewType, TypeVar, Union

from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import TypeIs


def resolve(annotation: Any) -> Any:  # Any: an annotation can be any object
    """Return the annotation in terms of plain types: Tensor, int, list[...], unions of those, ...

    Taken off are `type X = ...` and `TypeAliasType`, `NewType`, `TypeVar` (its bound, or the union of its
    constraints), `Annotated`, `Final`, jaxtyping's dtypes and shapes, and subclasses of Tensor.
    """
    if annotation is Tensor or type(annotation) is type:  # the most of them: a plain class
        return annotation
    inner = _behind(annotation)
    if inner is not annotation:
        return resolve(inner)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return Union[tuple(map(resolve, arguments))]  # noqa: UP007 - built from values, not written
    if origin is list and arguments:
        return list[resolve(arguments[0])]  # type: ignore[misc]  # built from values
    if origin is Sequence and arguments:
        return Sequence[resolve(arguments[0])]  # type: ignore[misc]  # built from values
    if origin is tuple and arguments:
        return tuple[tuple(item if item is Ellipsis else resolve(item) for item in arguments)]  # type: ignore[misc]  # built from values
    return annotation


def _behind(annotation: Any) -> Any:  # Any: see above
    """Return one step towards the plain annotation; the annotation itself if there is none."""
    origin = typing.get_origin(annotation)
    if origin in (Annotated, Final):
        return typing.get_args(annotation)[0]
    if _is_alias(annotation):
        return annotation.__value__
    if _is_alias(origin):
        return origin.__value__[typing.get_args(annotation)]
    if isinstance(annotation, NewType):
        return annotation.__supertype__
    if isinstance(annotation, TypeVar):
        return _bound_of(annotation)
    if is_class(annotation):
        return _behind_class(annotation)
    return annotation


def is_class(annotation: object) -> TypeIs[type]:
    """Return True for a class; `list[int]` is none, though Python 3.10 has it that it is an instance of `type`."""
    return isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias)


def _is_alias(annotation: object) -> bool:
    """Return True if it was made by `type X = ...` or `TypeAliasType`, which Python before 3.12 has from elsewhere."""
    return type(annotation).__name__ == "TypeAliasType"


def _bound_of(variable: TypeVar) -> Any:  # Any: see above
    if variable.__constraints__:
        return Union[variable.__constraints__]  # noqa: UP007 - built from values, not written
    return variable if variable.__bound__ is None else variable.__bound__


def _behind_class(annotation: type) -> Any:  # Any: see above
    if type(annotation).__module__.partition(".")[0] == "jaxtyping":  # Float[Tensor, "batch features"]
        return getattr(annotation, "array_type", annotation)
    is_subclass = issubclass(annotation, Tensor) and annotation is not Tensor
    return Tensor if is_subclass else annotation
