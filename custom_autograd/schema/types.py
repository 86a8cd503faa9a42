"""One row per type of an argument, and which Python types an op may take and return.

Add a type by adding a row. Lists, tuples and optionals of it are derived from the row, and so are containers with it.
"""

from __future__ import annotations

import enum
import functools
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, Union

import torch
from torch import Tensor

from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.schema import conversions
from custom_autograd.schema.annotations import is_class, resolve
from custom_autograd.schema.conversions import ArgumentType, Conversion
from custom_autograd.schema.schema import LIST_TYPES
from custom_autograd.torch_private.definitions import class_name_of, constant_of


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One supported type.

    Attributes:
        annotation: as written in a declaration.
        travels: how values reach kernels: the dispatcher's spelling, and the conversions to and from what it holds.
        examples: values that every test of all types passes; none if a value cannot be shared by calls.
        has_list: lists of it are supported.
        has_list_of_optional: lists that may hold None are supported.
        letter: how a container of varying shape holds it: as a tensor (T), an int (I), a float (F), a literal (=) or
            a constant of torch (t); empty if it cannot.
        code: the class of its values, if the dispatcher holds them as integers.
        defaults: the classes of values that can be a default.
        normalize: turns a default into what kernels get for the same value in a call; None if they are the same.
        results: the classes of values that a kernel may return; empty if the type cannot be returned.
        is_number: unions of such types are `Scalar`; the dispatcher makes a number of a tensor without dimensions.
        lists_take_tensors: the dispatcher does so in lists, too, where it may lose a derivative.
    """

    annotation: object
    travels: ArgumentType
    examples: tuple[Any, ...] = ()  # Any: values of the type
    has_list: bool = True
    has_list_of_optional: bool = False
    letter: str = ""
    code: type | None = None
    defaults: tuple[type, ...] = ()
    normalize: Conversion | None = None
    results: tuple[type, ...] = ()
    is_number: bool = False
    lists_take_tensors: bool = False

    @property
    def spelling(self) -> str:
        """Return the dispatcher's name of the type."""
        return self.travels.spelling


@functools.cache
def find_row(spelling: str) -> TypeRow | None:
    """Return the row of a type of the dispatcher, or None if there is none."""
    written = "SymInt" if spelling == "int" else spelling  # the parser reads both as int
    return next((row for row in ARGUMENT_TYPES if row.spelling == written), None)


def example_of(spelling: str) -> str:
    """Return a value of a type as a call writes it, for messages."""
    element, bracket, _ = spelling.removesuffix("?").partition("[")
    row = find_row(element.removesuffix("?"))
    if row is None:
        return f"a value of type {spelling}"
    text = row.travels.example or repr(row.examples[0])
    return f"[{text}]" if bracket else text


def find_element_row(spelling: str) -> TypeRow | None:
    """Return the row of a type, of its list or of an optional of one, or None if there is none."""
    return find_row(spelling.removesuffix("?").removesuffix("[]"))


def classes_held_as(letter: str) -> tuple[type, ...]:
    """Return the types that containers of varying shape hold in one way; see `TypeRow.letter`."""
    return tuple(row.annotation for row in ARGUMENT_TYPES if row.letter == letter and is_class(row.annotation))


_INT = TypeRow(
    int,
    ArgumentType("SymInt"),
    (3, -(2**63)),
    has_list_of_optional=True,
    letter="I",
    defaults=(int, torch.SymInt),
    results=(int, torch.SymInt),
    is_number=True,
)

ARGUMENT_TYPES: tuple[TypeRow, ...] = (
    TypeRow(
        Tensor,
        ArgumentType("Tensor", example="torch.ones(2)"),
        has_list_of_optional=True,
        letter="T",
        results=(Tensor,),
    ),
    TypeRow(
        bool,
        ArgumentType("bool"),
        (True, False),
        has_list_of_optional=True,
        letter="=",
        defaults=(bool,),
        results=(bool, torch.SymBool),
        is_number=True,
    ),
    _INT,
    replace(_INT, annotation=torch.SymInt),
    TypeRow(
        float,
        ArgumentType("float"),
        (0.5, float("inf")),
        has_list_of_optional=True,
        letter="F",
        defaults=(bool, int, float),
        results=(float, int, torch.SymFloat),
        is_number=True,
        lists_take_tensors=True,
    ),
    TypeRow(
        complex,
        ArgumentType("complex"),
        (1 + 2j, 2 + 0j),
        has_list_of_optional=True,
        letter="=",
        defaults=(bool, int, float, complex),
        is_number=True,
        lists_take_tensors=True,
    ),
    TypeRow(
        torch.types.Number,
        ArgumentType("Scalar"),
        (3, 2.5, 1j, True),
        defaults=(bool, int, float, complex),
        results=(int, float, complex, bool, torch.SymInt, torch.SymFloat),
    ),
    TypeRow(
        str,
        ArgumentType("str", example="'text'"),
        ("plain", 'a "quote"'),
        has_list_of_optional=True,
        letter="=",
        defaults=(str,),
    ),
    TypeRow(
        torch.dtype,
        ArgumentType("ScalarType"),
        (torch.float32, torch.bool),
        letter="t",
        code=torch.dtype,
        defaults=(torch.dtype,),
    ),
    TypeRow(
        torch.device,
        ArgumentType("Device", example="torch.device('cpu')"),
        (torch.device("cpu"), torch.device("meta")),
        letter="t",
        defaults=(torch.device, str),
        normalize=conversions.device,
    ),
    TypeRow(
        torch.layout,
        ArgumentType("Layout"),
        (torch.strided, torch.sparse_csr),
        has_list=False,
        letter="t",
        code=torch.layout,
        defaults=(torch.layout,),
    ),
    TypeRow(
        torch.memory_format,
        ArgumentType("MemoryFormat"),
        (torch.channels_last, torch.preserve_format),
        has_list=False,
        letter="t",
        code=torch.memory_format,
        defaults=(torch.memory_format,),
    ),
    TypeRow(
        torch.qscheme,
        conversions.constant(torch.qscheme),  # the dispatcher has QScheme, which takes integers only
        (torch.per_tensor_affine, torch.per_channel_symmetric),
        letter="t",
    ),
    TypeRow(torch.Size, ArgumentType("SymInt[]", conversions.sizes, torch.Size), (torch.Size([2, 3]),), has_list=False),
    TypeRow(
        torch.Generator,
        ArgumentType("Generator", conversions.generator, example="torch.Generator()"),
        has_list=False,
        defaults=(torch.Generator,),
    ),
)


@functools.cache
def find_check(spelling: str) -> Callable[[Any], Any] | None:  # Any: a value of a call
    """Return what refuses values that the dispatcher wrongly takes for one of a type, or None if it takes none."""
    row = find_element_row(spelling)
    kind = None if row is None else row.code
    if kind is None:
        return None
    is_list, is_optional = "[]" in spelling, spelling.endswith("?")

    def check(value: Any) -> Any:
        items = value if is_list and isinstance(value, (list, tuple)) else (value,)
        if not all(isinstance(item, kind) for item in items) and not (is_optional and value is None):
            raise ValueError(f"expected a torch.{kind.__name__}, found {value!r}")
        return value

    return check


def read_default(spelling: str, value: Any) -> Any:  # Any: a default of any type
    """Return a default that the parser read as a Python kernel sees it: what it keeps as a number is an object."""
    row = find_row(spelling.removesuffix("?"))
    return value if value is None or row is None or row.code is None else constant_of(spelling, row.code, value)


def describe_supported() -> str:
    """Return the supported annotations in one line, for messages."""
    names = [row.annotation.__name__ if is_class(row.annotation) else "Number" for row in ARGUMENT_TYPES]
    derived = "optionals, lists and tuples of them, Literal, Enum, classes registered with torch"
    leaves = f"{', '.join(dict.fromkeys(names))}, {derived}"
    return f"{leaves}, and dicts, NamedTuples, dataclasses and slices of all these"


def find_argument_type(annotation: object) -> ArgumentType | None:
    """Return how an annotation travels through the dispatcher, or None if the type is not supported."""
    if annotation is Tensor or type(annotation) is type:  # most annotations are plain classes, which need no search
        plain = _PLAIN_CLASSES.get(annotation)
        if plain is not None:
            return plain[0]
    return _find(resolve(annotation))


def find_return_spelling(annotation: object) -> str | None:
    """Return the dispatcher's spelling of one returned value, or None if it cannot be returned."""
    if annotation is Tensor or type(annotation) is type:  # as above
        plain = _PLAIN_CLASSES.get(annotation)
        if plain is not None:
            return plain[1]
    annotation = resolve(annotation)
    row = _find_row(annotation)
    if row is not None:
        return row.spelling if row.results else None
    inner = _optional(annotation)
    if inner is not None and inner == Tensor:
        return "Tensor?"
    element, length = _element(annotation)
    return "Tensor[]" if element == Tensor and length is None else None


def _find(annotation: object) -> ArgumentType | None:
    """Return the same for an annotation that is resolved."""
    row = _find_row(annotation)
    if row is not None:
        return _travels(row)
    if typing.get_origin(annotation) is Literal:
        return conversions.literal(typing.get_args(annotation))
    if is_class(annotation) and issubclass(annotation, enum.Enum):
        return conversions.enumeration(annotation)
    if is_class(annotation):
        name = class_name_of(annotation)
        return None if name is None else conversions.instance(annotation, name)
    inner = _optional(annotation)
    if inner is not None:
        found = _find(inner)
        if found is None or found.spelling.endswith("?") or found.spelling in LIST_TYPES:
            return None  # an optional list of tensors is a container: see TENSOR_TYPES
        return conversions.optional(found)
    return _find_sequence(annotation)


def _travels(row: TypeRow) -> ArgumentType:
    return replace(row.travels, example=row.travels.example or example_of(row.spelling))


def _find_sequence(annotation: object) -> ArgumentType | None:
    element, length = _element(annotation)
    found = None if element is None or not _has_list(element) else _find(element)
    if found is None:
        return None
    row = find_row(found.spelling)
    if row is not None and row.code is not None:
        found = replace(found, from_dispatcher=functools.partial(constant_of, row.spelling, row.code))
    if typing.get_origin(annotation) is not tuple or found.spelling.startswith("Tensor"):
        return None if length is not None else conversions.list_of(found)
    if length is not None and found.to_dispatcher is None:
        found = replace(found, to_dispatcher=find_check(found.spelling))
    return conversions.tuple_of(found, length)


def _has_list(element: object) -> bool:
    """Return True if there are lists of a type; what is derived from a row is as the row it travels as."""
    inner = _optional(element)
    row = _find_row(element if inner is None else inner)
    if row is not None:
        return row.has_list if inner is None else row.has_list_of_optional
    if is_class(element) and not issubclass(element, enum.Enum) and class_name_of(element) is not None:
        return False
    found = _find(element)
    return found is not None and "[" not in found.spelling


def _find_row(annotation: object) -> TypeRow | None:
    if typing.get_origin(annotation) in (Union, types.UnionType) and _NUMBERS.issuperset(typing.get_args(annotation)):
        annotation = torch.types.Number
    for row in ARGUMENT_TYPES:
        if row.annotation == annotation:
            return row
    return None


def _optional(annotation: object) -> object | None:
    """Return X of `Optional[X]` or `X | None`, where Number (itself a union) may be X."""
    if typing.get_origin(annotation) not in (Union, types.UnionType):
        return None
    members: tuple[object, ...] = typing.get_args(annotation)
    rest = tuple(member for member in members if member is not type(None))
    if len(rest) == len(members):
        return None
    return rest[0] if len(rest) == 1 else Union[rest]  # noqa: UP007 - built from values, not written


def _element(annotation: object) -> tuple[object | None, int | None]:
    """Return X of `list[X]`, `Sequence[X]`, `tuple[X, ...]` or `tuple[X, X]`, and the length that is fixed, if any."""
    origin = typing.get_origin(annotation)
    arguments: tuple[object, ...] = typing.get_args(annotation)
    if origin in (list, Sequence) and len(arguments) == 1:
        return arguments[0], None
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return arguments[0], None
    if origin is tuple and arguments and all(argument == arguments[0] for argument in arguments):
        return arguments[0], len(arguments)
    return None, None


_NUMBERS = frozenset(row.annotation for row in ARGUMENT_TYPES if row.is_number)
_PLAIN_CLASSES: dict[object, tuple[ArgumentType, str | None]] = {
    row.annotation: (_travels(row), row.spelling if row.results else None)
    for row in ARGUMENT_TYPES
    if is_class(row.annotation)
}
