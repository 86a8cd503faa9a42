"""What the author of an op wrote: options, and annotations as objects, without names, marks and shapes."""

from __future__ import annotations

import builtins
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, NewType, TypeVar, Union

import torch
import typing_extensions
from torch import Tensor

from custom_autograd.core.errors import DeclarationError
from custom_autograd.core.locations import unwrap
from custom_autograd.core.signatures import annotations_as_text, find_signature, signature_of_code
from custom_autograd.frozen_dataclass import dataclass

if TYPE_CHECKING:
    from typing_extensions import TypeIs


@dataclass(frozen=True, slots=True)
class DeclarationOptions:
    """The author's options for the schema of an op, next to the function itself."""

    op: str
    mutates: tuple[str, ...] | str
    schema: str | None
    outputs: tuple[str, ...] | None
    hidden: tuple[str, ...]
    non_differentiable: tuple[str, ...]
    tags: tuple[torch.Tag, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    static: tuple[str, ...] = ()
    inline: str | None = None
    checkpoint: str | None = None
    described: tuple[str, ...] = ()  # the new outputs, as a line of shapes names them


@dataclass(frozen=True, slots=True)
class Refusal:
    """Makes the error of a declaration, with the op and its location."""

    op: str
    location: str

    def __call__(self, problem: str, **facts: str | None) -> DeclarationError:
        """Return the error for it."""
        return DeclarationError(self.op, problem, declared=self.location, **facts)


class UnreadableError(Exception):
    """Raised if the annotations of a class, or what a type alias stands for, cannot be evaluated."""


@contextmanager
def only_readable(refuse: Refusal) -> Iterator[None]:
    """Raise the error of a declaration if an annotation within one cannot be evaluated."""
    try:
        yield
    except UnreadableError as error:
        do = "define or import each name at the top of its module, and not under `if TYPE_CHECKING:`"
        raise refuse(str(error), do=do) from error
    except RecursionError as error:
        do = "write out as many levels as the op takes, or annotate the argument with a dataclass that holds itself"
        raise refuse("an annotation is a type alias that contains itself", do=do) from error


def resolve(annotation: Any) -> Any:  # Any: an annotation can be any object
    """Return the annotation in terms of plain types: Tensor, int, list[...], unions of those, ...

    Taken off are `type X = ...` and `TypeAliasType`, `NewType`, `TypeVar` (its bound, or the union of its
    constraints), `Annotated`, `Final`, what a TypedDict says of its keys, jaxtyping's dtypes and shapes, and subclasses
    of Tensor.

    Raises:
        UnreadableError: a type alias cannot be evaluated.
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
    if origin in QUALIFIERS:
        return typing.get_args(annotation)[0]
    if _is_alias(annotation) or _is_alias(origin):
        return _value_of(annotation)
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


def _value_of(alias: Any) -> Any:  # Any: see above
    """Return what a type alias stands for, with the arguments that it is given."""
    try:
        if _is_alias(alias):
            return alias.__value__
        plain = typing.get_origin(alias)
        # In the order of its parameters, which is not always that in which its value names them.
        rows: Any = types.GenericAlias(tuple, (*plain.__parameters__, plain.__value__))
        return typing.get_args(rows[typing.get_args(alias)])[-1]
    except RecursionError:
        raise
    except Exception as error:
        raise UnreadableError(f"the type alias {alias} cannot be evaluated: {error}") from error


def _bound_of(variable: TypeVar) -> Any:  # Any: see above
    if variable.__constraints__:
        return Union[variable.__constraints__]  # noqa: UP007 - built from values, not written
    return variable if variable.__bound__ is None else variable.__bound__


def _behind_class(annotation: type) -> Any:  # Any: see above
    if type(annotation).__module__.partition(".")[0] == "jaxtyping":  # Float[Tensor, "batch features"]
        return getattr(annotation, "array_type", annotation)
    is_subclass = issubclass(annotation, Tensor) and annotation is not Tensor
    return Tensor if is_subclass else annotation


def hints_of(annotated: Callable[..., Any]) -> dict[str, Any]:  # Any: an annotation can be any object
    """Return the annotations of a function or a class by name, as `typing.get_type_hints` does."""
    found = _find_classes(annotated)
    return _hints_of(annotated) if found is None else found


def hints_of_class(cls: type) -> dict[str, Any]:  # Any: see above
    """Return the annotations of a class by name, with those of its bases.

    Raises:
        UnreadableError: one of them cannot be evaluated.
    """
    try:
        return hints_of(cls)
    except Exception as error:
        raise UnreadableError(f"the annotations of {cls.__qualname__} cannot be read: {error}") from error


def _find_classes(annotated: Callable[..., Any]) -> dict[str, type] | None:
    """Return the annotations of a function if each is a class or the name of one; `typing` compiles every text."""
    scope = getattr(annotated, "__globals__", None)
    if scope is None or getattr(annotated, "__type_params__", None):  # which hide globals of their names
        return None
    found = {}
    for name, value in annotated.__annotations__.items():  # an AttributeError is one within them
        hint = scope.get(value, vars(builtins).get(value)) if isinstance(value, str) else value
        if hint is not Tensor and type(hint) is not type and not is_class(hint):
            return None
        found[name] = hint
    return found


if sys.version_info >= (3, 11):
    _hints_of = typing.get_type_hints

else:
    # Python 3.10 adds None to the type of a parameter whose default it is, and leaves the text in list["Name"] a text.

    def _hints_of(annotated: Callable[..., Any]) -> dict[str, Any]:
        """Return the annotations of a function or a class by name, as a later Python does."""
        if not isinstance(annotated, type):
            return _evaluated(getattr(annotated, "__annotations__", {}), getattr(annotated, "__globals__", {}), {})
        found: dict[str, Any] = {}
        for base in reversed(annotated.__mro__):
            names = vars(sys.modules.get(base.__module__, types))
            found |= _evaluated(inspect.get_annotations(base), names, vars(base))
        return found

    def _evaluated(written: Mapping[str, Any], names: Mapping[str, Any], around: Mapping[str, Any]) -> dict[str, Any]:
        # NOTE: `typing` takes no text for what is not a type, such as InitVar[int], so it gets what the text says.
        read = {
            name: eval(typing.ForwardRef(value).__forward_code__, dict(names), dict(around))
            if isinstance(value, str)
            else value
            for name, value in written.items()
        }
        holder = types.SimpleNamespace(__annotations__={name: _referring(value) for name, value in read.items()})
        return typing.get_type_hints(holder, dict(names), dict(around))

    def _referring(annotation: Any) -> Any:
        """Return an annotation with references in place of texts within brackets."""
        is_union = typing.get_origin(annotation) in (Union, types.UnionType)
        if not is_union and type(annotation) is not types.GenericAlias:  # that of Callable[[X], Y] is a subclass
            return annotation
        arguments = (typing.ForwardRef(one) if isinstance(one, str) else _referring(one) for one in annotation.__args__)
        origin: Any = Union if is_union else annotation.__origin__
        return origin[tuple(arguments)]


QUALIFIERS = (
    Annotated,
    Final,
    typing_extensions.Required,
    typing_extensions.NotRequired,
    typing_extensions.ReadOnly,
)
"""Wrappers that say something of a name, and nothing of the type of its values."""


def is_not_required(annotation: Any) -> bool:  # Any: see above
    """Return True if a TypedDict says of a key that it may be missing."""
    origin = typing.get_origin(annotation)
    if origin not in QUALIFIERS:
        return False
    return origin is typing_extensions.NotRequired or is_not_required(typing.get_args(annotation)[0])


@dataclass(frozen=True, slots=True)
class Written:
    """The head of a function as written; it is read once for each declaration.

    Attributes:
        signature: what a call may pass; None for a builtin that does not say.
        annotations: by parameter, and that of "return", in terms of plain types; empty for an op with a schema.
    """

    signature: inspect.Signature | None
    annotations: dict[str, Any]  # Any: an annotation can be any object


def read_function(function: Callable[..., Any], options: DeclarationOptions, refuse: Refusal) -> Written:
    """Return the signature and the annotations of a function that is declared as an op."""
    if options.schema is not None:
        return Written(signature_of_code(function), {})
    signature = find_signature(function)
    if signature is None:
        return Written(None, {})
    annotations = {name: resolve(value) for name, value in _read(function, signature, refuse).items()}
    for name, value in annotations.items():
        is_left_out = name in signature.parameters and signature.parameters[name].default is None
        if is_left_out and (is_class(value) or typing.get_origin(value) is not None):  # as torch.library has it
            annotations[name] = typing.Optional[value]  # noqa: UP045 - built from a value
    return Written(signature, annotations)


def _read(function: Callable[..., Any], signature: inspect.Signature, refuse: Refusal) -> dict[str, Any]:
    """Return the annotations as objects, also where they were written as strings."""
    plain = unwrap(function)
    written = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    written["return"] = signature.return_annotation
    try:
        return {**written, **hints_of(plain)}
    except (NameError, TypeError):  # a name that is not global; a `Final`, which Python has in classes only
        pass
    except Exception as error:
        do = "correct the annotation, or pass schema="
        raise refuse(f"the annotations cannot be read: {error}", do=do) from error
    scope = {**getattr(plain, "__globals__", {}), **_names_around(plain)}
    texts = annotations_as_text(plain)
    written = {name: texts.get(name, value) if _is_unresolved(value) else value for name, value in written.items()}
    return {name: _evaluate(name, value, scope, refuse) for name, value in written.items()}


def _is_unresolved(annotation: Any) -> bool:  # Any: an annotation
    """Return True if a part of an annotation is a name that Python could not resolve."""
    parts = annotation if isinstance(annotation, list) else typing.get_args(annotation)
    return isinstance(annotation, typing.ForwardRef) or any(map(_is_unresolved, parts))


def _names_around(function: Callable[..., Any]) -> dict[str, Any]:  # Any: whatever is around it
    """Return what a string annotation may name besides globals: type parameters, and names local to the function."""
    found: dict[str, Any] = {}
    frame = inspect.currentframe()
    code = getattr(function, "__code__", None)
    while frame is not None and code is not None:
        if code in frame.f_code.co_consts:
            found = {**frame.f_locals, **found}
            code = frame.f_code
        frame = frame.f_back
    if inspect.isfunction(function):
        found.update(inspect.getclosurevars(function).nonlocals)
    found.update({parameter.__name__: parameter for parameter in getattr(function, "__type_params__", ())})
    return found


def _evaluate(name: str, annotation: Any, scope: dict[str, Any], refuse: Refusal) -> Any:  # Any: an annotation
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, scope)
    except Exception as error:
        raise refuse(
            f"the annotation of '{name}' cannot be read",
            found=repr(annotation),
            do="define or import the type above the op, and not under `if TYPE_CHECKING:`: there it is not known yet",
        ) from error
