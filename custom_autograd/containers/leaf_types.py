"""What may be in a container whose shape varies: annotation -> leaf type, which turns values into specs.

`encode` runs in every call, also while Dynamo traces it: plain loops over plain containers.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import inspect
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor
from torch.fx import Proxy

from custom_autograd.containers.named_fields import RecordType, advise_plain, describe, find_record, is_plain, is_union
from custom_autograd.containers.treespecs import MisfitError, constant_of, is_constant, name_of
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.schema.annotations import is_class, resolve
from custom_autograd.schema.types import classes_held_as
from custom_autograd.torch_private.compiler import constant_in_graphs
from custom_autograd.torch_private.trees import NodeType, find_node_type

LITERALS = (*classes_held_as("="), type(None))
TORCH_CONSTANTS = classes_held_as("t")
BY_CLASS = ("fields", "dataclass")
"""The styles of containers that are classes."""
Spec = tuple[Any, ...] | str
"""What the text of a structure says, as `treespecs` has it."""
Parts = dict[str, list[Any]]
"""Values that travel next to the text of a structure, by letter (Any: tensors and numbers, symbols among them)."""


def no_parts() -> Parts:
    """Return the start of what `encode` adds to."""
    return {"T": [], "I": [], "F": []}


def refuse(path: str, expected: str, value: Any, found: str | None = None) -> NoReturn:
    """Raise what says that a value is of another kind."""
    raise MisfitError(path, expected, found or describe(value), advise_plain(value))


@dataclass(frozen=True, slots=True)
class Single:
    """A tensor ("T"), an int ("I") or a float ("F")."""

    letter: str
    label: str

    def encode(self, value: Any, parts: Parts, path: str) -> Spec:
        """Return the spec of a value; what travels next to it is added to `parts`."""
        if not self.accepts(value):
            refuse(path, self.label, value)
        parts[self.letter].append(float(value) if self.letter == "F" and type(value) is int else value)
        return self.letter

    def accepts(self, value: Any) -> bool:
        """Return True if a value looks like one of this kind, seen from outside."""
        if self.letter == "T":
            return isinstance(value, (Tensor, Proxy))
        is_int = isinstance(value, (int, torch.SymInt, Proxy)) and not isinstance(value, bool)
        return is_int or (self.letter == "F" and isinstance(value, (float, torch.SymFloat)))


TENSOR, INT, _ = SINGLES = (Single("T", "a tensor"), Single("I", "an int"), Single("F", "a float"))


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is part of the structure: bool, str, None, complex, Enum, dtype, device, ..."""

    types: tuple[type, ...]
    values: tuple[Any, ...] = ()

    @property
    def label(self) -> str:
        """Return what a message calls it."""
        kinds = ["None" if one is type(None) else f"a {one.__name__}" for one in self.types]
        return " or ".join([repr(one) for one in self.values] or kinds)

    def encode(self, value: Any, parts: Parts, path: str) -> Spec:
        """Implement `Kind`."""
        if not self.accepts(value):
            refuse(path, self.label, value)
        if isinstance(value, enum.Enum):
            member = value.value if isinstance(value, enum.Flag) else value.name
            return ("e", name_of(type(value)), member)
        if isinstance(value, complex):
            return ("c", str(value.real), str(value.imag))
        if isinstance(value, TORCH_CONSTANTS):
            return ("t", f"{'device' if isinstance(value, torch.device) else 'constant'} {value}")
        return ("=", constant_of(value))

    def accepts(self, value: Any) -> bool:
        """Implement `Kind`."""
        if self.values:
            value = constant_of(value)
            return any(type(value) is type(one) and value == one for one in self.values)
        is_single = isinstance(value, (enum.Enum, *TORCH_CONSTANTS))
        cls = bool if type(value) is torch.SymBool else type(value)
        return cls in self.types or (is_single and isinstance(value, self.types))


@dataclass(frozen=True, slots=True)
class Choice:
    """A union: the first kind that accepts the value."""

    kinds: tuple[Kind, ...]
    label: str

    def encode(self, value: Any, parts: Parts, path: str) -> Spec:
        """Implement `Kind`."""
        able = [kind for kind in self.kinds if kind.accepts(value)]
        for kind in able[:-1]:
            tried = no_parts()
            try:
                found = kind.encode(value, tried, path)
            except MisfitError:  # list[int] | list[Tensor]: both look like lists from outside
                continue
            for letter, row in tried.items():
                parts[letter] += row
            return found
        if not able:
            refuse(path, self.label, value)
        return able[-1].encode(value, parts, path)

    def accepts(self, value: Any) -> bool:
        """Implement `Kind`."""
        return any(kind.accepts(value) for kind in self.kinds)


@dataclass(frozen=True, slots=True)
class Many:
    """A list, or a tuple of any length, of one kind."""

    kind: Kind
    is_tuple: bool = False

    def encode(self, value: Any, parts: Parts, path: str) -> Spec:
        """Implement `Kind`."""
        if not self.accepts(value):
            refuse(path, "a tuple" if self.is_tuple else "a list", value)
        tag = "z" if type(value) is torch.Size else "u" if isinstance(value, tuple) else "l"
        return (tag, *[self.kind.encode(item, parts, f"{path}[{index}]") for index, item in enumerate(value)])

    def accepts(self, value: Any) -> bool:
        """Implement `Kind`."""
        return type(value) in (list, tuple, torch.Size)


@dataclass(frozen=True, slots=True)
class Table:
    """A dict of any keys (str, int or bool) to one kind."""

    key: Constant | Single
    kind: Kind

    def encode(self, value: Any, parts: Parts, path: str) -> Spec:
        """Implement `Kind`."""
        if not self.accepts(value):
            refuse(path, "a dict", value)
        found = []
        for key, item in value.items():
            if not (type(key) in (str, int, bool) and self.key.accepts(key)):
                refuse(f"{path}, key {key!r}", self.key.label, key)
            found.append((constant_of(key), self.kind.encode(item, parts, f"{path}[{key!r}]")))
        return ("d", *found)

    def accepts(self, value: Any) -> bool:
        """Implement `Kind`."""
        return is_plain(value, dict)


@dataclass(frozen=True, slots=True)
class Fields:
    """A NamedTuple, a dataclass, a TypedDict, a tuple of fixed length or a slice: each field has its own kind.

    Attributes:
        record: the container.
        kinds: of its fields; those of a class are found when `letters` is first called, since it may hold itself.
    """

    record: RecordType
    kinds: list[Kind]

    def encode(self, value: Any, parts: Parts, path: str) -> Spec:
        """Implement `Kind`."""
        record, found = self.record, self.record.read(value)
        if found is None:
            refuse(path, record.label, value, record.describe(value))
        children = [kind.encode(found[i], parts, path + record.path(i)) for i, kind in enumerate(self.kinds)]
        if record.style == "keys":
            return ("d", *zip(record.keys, children, strict=False))
        if record.style in BY_CLASS:
            return ("r", name_of(record.cls), *children)
        return ("u" if record.style == "items" else "s", *children)

    def accepts(self, value: Any) -> bool:
        """Implement `Kind`."""
        return self.record.read(value) is not None


def fields_of(record: RecordType) -> Fields:
    """Return the kind of a container with fixed fields."""
    if record.style in BY_CLASS:
        return _fields_of_class(record.cls)
    return Fields(record, [kind_of(one) for one in record.annotations])


@functools.cache  # one for each class, which may contain itself
def _fields_of_class(cls: type) -> Fields:
    record = find_record(cls)
    assert record is not None, cls
    return Fields(record, [])


@constant_in_graphs
def _find_fields(cls: type) -> Fields | None:
    """Return the kind of a class that is met in a call, or None if it has no fixed fields."""
    return _fields_met(cls)


@functools.cache
def _fields_met(cls: type) -> Fields | None:
    record = None if cls in (tuple, dict) else find_record(cls)
    fields = None if record is None else fields_of(record)
    if fields is not None:
        letters(fields)
    return copy.deepcopy(fields)  # Dynamo cannot guard that it has the same kinds as the annotations


@dataclass(frozen=True, slots=True)
class Registered:
    """A class that is registered as a pytree node: its children may be anything."""

    node: NodeType

    def encode(self, value: Any, parts: Parts, path: str) -> Spec:
        """Implement `Kind`."""
        cls = self.node.cls
        if not self.accepts(value):
            refuse(path, f"a {cls.__name__}", value)
        found, context = self.node.dump(value)
        context = constant_of(context)
        if not is_constant(context):
            refuse(f"the context of {path}", "bools, numbers, strings and containers of those", context)
        children = [ANYTHING.encode(item, parts, f"{path}.{index}") for index, item in enumerate(found)]
        return ("p", name_of(cls), context, *children)

    def accepts(self, value: Any) -> bool:
        """Implement `Kind`."""
        return type(value) is self.node.cls


class Anything:
    """Whatever the value is: `Any`, or a container without further annotation."""

    def encode(self, value: Any, parts: Parts, path: str) -> Spec:
        """Implement `Kind`."""
        kind = self._find(value)
        if kind is None:
            refuse(path, "tensors, numbers, strings, dtypes, Enums, and containers of those", value)
        return kind.encode(value, parts, path)

    def accepts(self, value: Any) -> bool:
        """Implement `Kind`."""
        return self._find(value) is not None

    def _find(self, value: Any) -> Kind | None:
        if type(value) in LITERALS or isinstance(value, (enum.Enum, torch.SymBool, *TORCH_CONSTANTS)):
            return Constant((bool if isinstance(value, torch.SymBool) else type(value),))
        for single in SINGLES:
            if single.accepts(value):
                return single
        node = find_node_type(type(value))
        if node is not None:
            return Registered(node)
        fields = _find_fields(type(value))
        if fields is not None:
            return fields
        if is_plain(value, dict):
            return Table(KEY, self)
        return Many(self) if is_plain(value, (list, tuple)) else None


Kind = Single | Constant | Choice | Many | Table | Fields | Registered | Anything
"""One kind of value."""
ANYTHING = Anything()
KEY = Constant((str, int))


def letters(kind: Kind, seen: frozenset[type] = frozenset()) -> set[str]:
    """Return which of "T", "I" and "F" may be anywhere inside."""
    match kind:
        case Single():
            return {kind.letter}
        case Constant():
            return set()
        case Many() | Table():
            return letters(kind.kind, seen)
        case Choice(kinds):
            return {letter for one in kinds for letter in letters(one, seen)}
        case Fields(record, kinds):
            if record.style in BY_CLASS and record.cls in seen:
                return set()
            if not kinds:
                kinds[:] = [kind_of(one) for one in record.annotations]
            return {letter for one in kinds for letter in letters(one, seen | {record.cls})}
        case Registered() | Anything():
            return set("TIF")


class UnknownKindError(Exception):
    """An annotation without a kind."""


def kind_of(annotation: Any) -> Kind:
    """Return the kind of an annotation."""
    annotation = resolve(annotation)
    simple = SIMPLE.get(annotation) if isinstance(annotation, typing.Hashable) else None
    if simple is not None:
        return simple
    origin, items = typing.get_origin(annotation), typing.get_args(annotation)
    if is_union(annotation):
        return Choice(tuple(map(kind_of, sorted(items, key=_strictness))), " or ".join(map(_spell, items)))
    if origin is Literal:
        return Constant(tuple({type(one) for one in items}), items)
    if origin in (list, Sequence):
        return Many(kind_of(items[0]))
    if origin is tuple and Ellipsis in items:
        return Many(kind_of(items[0]), is_tuple=True)
    if origin in (dict, Mapping):
        return Table(_key_of(items[0]), kind_of(items[1]))
    return _kind_of_class(annotation)


def _kind_of_class(annotation: Any) -> Kind:
    if is_class(annotation):
        if issubclass(annotation, Tensor):
            return TENSOR
        if issubclass(annotation, enum.Enum):
            name_of(annotation)
            return Constant((annotation,))
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


def _strictness(annotation: Any) -> int:
    """Return the rank of bool before int before float, so that each number is taken for what it is."""
    order = {bool: 0, int: 1, float: 2, complex: 3}
    return order.get(annotation, -1) if is_class(annotation) else -1


def _key_of(annotation: Any) -> Constant | Single:
    if annotation is Any:
        return KEY
    found = kind_of(annotation)
    if isinstance(found, Single) and found is INT:
        return found
    if isinstance(found, Constant) and set(found.types) <= {str, int}:
        return found
    raise UnknownKindError(f"dict keys of type {_spell(annotation)}")


def _spell(annotation: Any) -> str:
    record = find_record(annotation)
    if record is not None:
        return record.label
    return "None" if annotation is type(None) else inspect.formatannotation(annotation).removeprefix("torch.")


SIMPLE: dict[Any, Kind] = {
    **{cls: single for single in SINGLES for cls in classes_held_as(single.letter)},
    **{cls: Constant((cls,)) for cls in (*LITERALS, *TORCH_CONSTANTS)},
    None: Constant((type(None),)),
    Any: ANYTHING,
    object: ANYTHING,
    list: Many(ANYTHING),
    tuple: Many(ANYTHING, is_tuple=True),
    dict: Table(KEY, ANYTHING),
    torch.Size: Many(INT, is_tuple=True),
}
