"""What may stand inside a container whose shape varies: from annotations to kinds, and the kinds that know classes."""

from __future__ import annotations

import copy
import dataclasses
import enum
import inspect
import math
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from custom_autograd.containers.basic_leaf_types import (
    LITERALS,
    TORCH_CONSTANTS,
    Choice,
    Constant,
    Kind,
    Many,
    Parts,
    Single,
    Table,
    refuse,
)
from custom_autograd.containers.named_fields import RecordType, find_record, is_plain, is_union
from custom_autograd.containers.treespecs import name_of
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.schema.annotations import is_class, resolve
from custom_autograd.schema.types import classes_held_as
from custom_autograd.torch_private.compiler import constant_in_graphs
from custom_autograd.torch_private.trees import NodeType, find_node_type

BY_CLASS = ("fields", "dataclass")
"""The styles of containers that are classes."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A NamedTuple, a dataclass, a TypedDict, a tuple of fixed length or a slice: each field has its own kind.

    Attributes:
        record: the container.
        kinds: of its fields; those of a class are found when `inner` is first called, since it may hold itself.
    """

    record: RecordType
    kinds: list[Kind]

    def encode(self, value: Any, parts: Parts, path: str) -> str:
        """Implement `Kind`."""
        record, found = self.record, self.record.read(value)
        if found is None:
            refuse(path, record.label, value, record.describe(value))
        texts = [kind.encode(found[i], parts, path + record.path(i)) for i, kind in enumerate(self.kinds)]
        if record.style == "keys":
            return f"('d',{', '.join([f'({key!r}, {text})' for key, text in zip(record.keys, texts, strict=False)])})"
        head = {"items": "'u'", "slice": "'s'"}.get(record.style) or f"'r', {name_of(record.cls)!r}"
        return f"({', '.join([head, *texts])},)"

    def accepts(self, value: Any) -> bool:
        """Implement `Kind`."""
        return self.record.read(value) is not None

    def inner(self) -> Sequence[Kind]:
        """Implement `Kind`."""
        if not self.kinds:
            self.kinds[:] = [kind_of(one) for one in self.record.annotations]
        return self.kinds


@dataclass(frozen=True, slots=True)
class Registered:
    """A class that is registered as a pytree node: its children may be anything."""

    node: NodeType

    def encode(self, value: Any, parts: Parts, path: str) -> str:
        """Implement `Kind`."""
        cls = self.node.cls
        if type(value) is not cls:
            refuse(path, f"a {cls.__name__}", value)
        found, context = self.node.dump(value)
        if not _is_writable(context):
            refuse(f"the context of {path}", "bools, numbers, strings and containers of those", context)
        texts = [ANYTHING.encode(item, parts, f"{path}.{index}") for index, item in enumerate(found)]
        return f"({', '.join([repr('p'), repr(name_of(cls)), repr(context), *texts])},)"

    def accepts(self, value: Any) -> bool:
        """Implement `Kind`."""
        return type(value) is self.node.cls

    def inner(self) -> Sequence[Kind]:
        """Implement `Kind`."""
        return (ANYTHING,)


_FIELDS: dict[type, Fields] = {}


def fields_of(record: RecordType) -> Fields:
    """Return the kind of a container with fixed fields."""
    if record.style in BY_CLASS:
        return _FIELDS.setdefault(record.cls, Fields(record, []))
    return Fields(record, [kind_of(one) for one in record.annotations])


_MET: dict[type, Fields | None] = {}


@constant_in_graphs
def _find_fields(cls: type) -> Fields | None:
    """Return the kind of a class that is met in a call, or None if it has no fixed fields."""
    if cls not in _MET:
        record = None if cls in (tuple, dict) else find_record(cls)
        fields = None if record is None else fields_of(record)
        if fields is not None:
            letters(fields)
        _MET[cls] = copy.deepcopy(fields)  # Dynamo cannot guard that it has the same kinds as the annotations
    return _MET[cls]


class Anything:
    """Whatever the value is: `Any`, or a container without further annotation."""

    def encode(self, value: Any, parts: Parts, path: str) -> str:
        """Implement `Kind`."""
        kind = self._find(value)
        if kind is None:
            refuse(path, "tensors, numbers, strings, dtypes, Enums, and containers of those", value)
        return kind.encode(value, parts, path)

    def accepts(self, value: Any) -> bool:
        """Implement `Kind`."""
        return self._find(value) is not None

    def inner(self) -> Sequence[Kind]:
        """Implement `Kind`."""
        return tuple(map(Single, "TIF"))

    def _find(self, value: Any) -> Kind | None:
        if type(value) in LITERALS or isinstance(value, (enum.Enum, *TORCH_CONSTANTS)):
            return Constant((type(value),))
        for letter in "TIF":
            if Single(letter).accepts(value):
                return Single(letter)
        node = find_node_type(type(value))
        if node is not None:
            return Registered(node)
        fields = _find_fields(type(value))
        if fields is not None:
            return fields
        if is_plain(value, dict):
            return Table(Constant((str, int)), self)
        return Many(self) if is_plain(value, (list, tuple)) else None


ANYTHING = Anything()


def _is_writable(context: Any) -> bool:
    if isinstance(context, (list, tuple)):
        return type(context) in (list, tuple) and all(_is_writable(item) for item in context)
    if isinstance(context, dict):
        return all(_is_writable(item) for row in context.items() for item in row)
    if isinstance(context, float):
        return math.isfinite(context)
    return type(context) in (bool, int, str, type(None))


def letters(kind: Kind, seen: set[int] | None = None) -> set[str]:
    """Return which of "T", "I" and "F" may be anywhere inside."""
    seen = set() if seen is None else seen
    if isinstance(kind, Single):
        return {kind.letter}
    name = id(kind.record.cls) if isinstance(kind, Fields) and kind.record.style in BY_CLASS else id(kind)
    if name in seen:
        return set()
    seen.add(name)
    return {letter for one in kind.inner() for letter in letters(one, seen)}


class UnknownKindError(Exception):
    """An annotation without a kind."""


def kind_of(annotation: Any) -> Kind:
    """Return the kind of an annotation."""
    annotation = resolve(annotation)
    simple = SIMPLE.get(annotation) if isinstance(annotation, typing.Hashable) else None
    if simple is not None:
        return simple
    if is_union(annotation):
        members = typing.get_args(annotation)
        return Choice(tuple(map(kind_of, _by_strictness(members))), " or ".join(map(_spell, members)))
    origin, items = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return Constant(tuple({type(one) for one in items}), items)
    if origin in (list, *SEQUENCES):
        return Many(kind_of(items[0]))
    if origin is tuple and Ellipsis in items:
        return Many(kind_of(items[0]), is_tuple=True)
    if origin in (dict, *MAPPINGS):
        return Table(_key_of(items[0]), kind_of(items[1]))
    return _kind_of_class(annotation)


def _kind_of_class(annotation: Any) -> Kind:
    if is_class(annotation):
        if issubclass(annotation, enum.Enum):
            name_of(annotation)
            return Constant((annotation,))
        if issubclass(annotation, Tensor):
            return Single("T")
        node = find_node_type(annotation)
        if node is not None and node.is_named and not dataclasses.is_dataclass(annotation):
            name_of(annotation)
            return Registered(node)
    record = find_record(annotation)
    if record is None:
        raise UnknownKindError(_spell(annotation))
    if record.style in BY_CLASS:
        name_of(record.cls)
    return fields_of(record)


def _by_strictness(annotations: tuple[Any, ...]) -> Iterator[Any]:
    """Return the rank of bool before int before float, so that each number is taken for what it is."""
    order = {bool: 0, int: 1, float: 2, complex: 3}
    return iter(sorted(annotations, key=lambda one: order.get(one, -1) if is_class(one) else -1))


def _key_of(annotation: Any) -> Constant | Single:
    found = kind_of(annotation)
    if annotation is int:
        return Single("I")
    if annotation is Any:
        return Constant((str, int))
    if not isinstance(found, Constant) or not set(found.types) <= {str, int}:
        raise UnknownKindError(f"dict keys of type {_spell(annotation)}")
    return found


def _spell(annotation: Any) -> str:
    record = find_record(annotation)
    if record is not None:
        return record.label
    return "None" if annotation is type(None) else inspect.formatannotation(annotation).removeprefix("torch.")


SEQUENCES = (typing.get_origin(typing.Sequence[int]),)
MAPPINGS = (typing.get_origin(typing.Mapping[int, int]),)
SIMPLE: dict[Any, Kind] = {
    **{cls: Single(letter) for letter in "TIF" for cls in classes_held_as(letter)},
    Any: ANYTHING,
    object: ANYTHING,
    list: Many(ANYTHING),
    tuple: Many(ANYTHING, is_tuple=True),
    dict: Table(Constant((str, int)), ANYTHING),
    torch.Size: Many(Single("I"), is_tuple=True),
    None: Constant((type(None),)),
    **{kind: Constant((kind,)) for kind in (*LITERALS, *TORCH_CONSTANTS)},
}
