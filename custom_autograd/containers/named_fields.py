"""Containers with a fixed set of fields, and whether a declared function may have any containers."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import typing_extensions
from torch import Tensor
from torch.fx import Proxy

from custom_autograd.core.messages import quote
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.schema.annotations import (
    DeclarationOptions,
    Refusal,
    Written,
    hints_of_class,
    is_class,
    is_not_required,
)
from custom_autograd.schema.conversions import WRAP
from custom_autograd.schema.named_tuples import by_fields, find_misplaced
from custom_autograd.schema.types import find_argument_type, find_return_spelling
from custom_autograd.torch_private.compiler import TRACES_ATTRIBUTES, constant_in_graphs

if TYPE_CHECKING:
    from custom_autograd.containers.argument_tree import ArgumentTree


@dataclass(frozen=True, slots=True)
class RecordType:
    """One such container.

    Attributes:
        cls: the class of its values; `dict` for a TypedDict.
        style: "fields" (NamedTuple), "dataclass", "keys" (a dict), "items" (a list or a tuple) or "slice".
        keys: the names of the fields, or their indices as text.
        annotations: of each field; none for a dict that is not a TypedDict.
        label: what a message calls it.
    """

    cls: type
    style: str
    keys: tuple[str, ...]
    annotations: tuple[Any, ...]  # Any: annotations have no type of their own
    label: str

    def path(self, index: int) -> str:
        """Return the key path of a field in messages: `.weight`, `['k']` or `[0]`."""
        key = self.keys[index]
        if self.style == "keys":
            return f"[{key!r}]"
        return f"[{key}]" if self.style == "items" else f".{key}"

    def read(self, value: Any) -> tuple[Any, ...] | None:
        """Return the value of each field, or None if the value is something else."""
        if self.style == "items":
            return tuple(value) if is_plain(value, (tuple, list)) and len(value) == len(self.keys) else None
        if self.style == "keys":
            is_dict = isinstance(value, dict) and (is_plain(value, dict) or not self.annotations)
            is_same = is_dict and len(value) == len(self.keys)
            return tuple([value[key] for key in self.keys]) if is_same and all(k in value for k in self.keys) else None
        if type(value) is not self.cls or self._extra_attributes(value):
            return None
        return tuple([getattr(value, key) for key in self.keys])

    def _extra_attributes(self, value: Any) -> list[str]:
        """Return the attributes of an instance that are not fields, and that its class does not compute."""
        if self.style != "dataclass" or not hasattr(value, "__dict__"):
            return []
        if torch.compiler.is_dynamo_compiling() and not TRACES_ATTRIBUTES:
            return []
        return [name for name in value.__dict__ if name not in self.keys and not hasattr(self.cls, name)]

    def describe(self, value: Any) -> str:
        """Return what a message calls a value that is not such a container."""
        if type(value) is self.cls and self.style == "dataclass":
            return f"one with attributes in addition to its fields: {quote(self._extra_attributes(value))}"
        if isinstance(value, self.cls) and self.style in ("fields", "dataclass"):
            return f"{type(value).__name__}, a subclass, of which the op would see less"
        return describe(value)

    def make(self, values: Sequence[Any]) -> Any:
        """Make a value of the class with these fields, as they are: `__init__` and `__post_init__` have run."""
        if self.style == "slice":
            return slice(*values)
        return torch.Size(values) if self.cls is torch.Size else self.make_plain(values)

    def make_plain(self, values: Sequence[Any]) -> Any:
        """Return the same shape with other fields, such as gradients; no code of its author runs."""
        if self.style == "keys":
            return dict(zip(self.keys, values, strict=True))
        if self.style == "fields":
            return self.cls._make(values)  # type: ignore[attr-defined]  # a NamedTuple has it
        if self.style != "dataclass":
            return list(values) if self.cls is list else tuple(values)
        made: Any = object.__new__(self.cls)
        for key, value in zip(self.keys, values, strict=True):
            object.__setattr__(made, key, value)
        return made

    def read_loosely(self, value: Any) -> dict[str, Any] | None:
        """Return what a rule gave for it, by key: from an instance, a dict or a sequence; None if none of them."""
        found = self.read(value)
        if found is None and isinstance(value, Mapping) and set(value) <= set(self.keys):
            return dict(value) if self.annotations or len(value) == len(self.keys) else None
        is_row = isinstance(value, (tuple, list)) and len(value) == len(self.keys) == len(self.annotations)
        if found is None and is_row and find_misplaced(self.keys, value) is None:
            found = tuple(by_fields(self.keys, value))
        return None if found is None else dict(zip(self.keys, found, strict=True))


@constant_in_graphs
def find_record(annotation: Any) -> RecordType | None:
    """Return the container of an annotation, or None."""
    if typing.get_origin(annotation) is tuple:
        items = typing.get_args(annotation)
        if items in ((), ((),)) or Ellipsis in items:
            return None
        return row_of(tuple, items)
    if annotation is slice:
        return RecordType(slice, "slice", ("start", "stop", "step"), (int | None,) * 3, "a slice")
    if not is_class(annotation):
        return None
    if typing_extensions.is_typeddict(annotation):
        hints = hints_of_class(annotation)
        return None if _may_lack_keys(annotation) else dict_of(tuple(hints), tuple(hints.values()))
    return _find_class(annotation)


def _may_lack_keys(cls: type) -> bool:
    """Return True if a key of a TypedDict may be missing."""
    if getattr(cls, "__optional_keys__", ()):
        return True
    # NOTE: where annotations are texts, the class has not read the NotRequired in them.
    written = typing_extensions.get_type_hints(cls, include_extras=True)
    return any(is_not_required(annotation) for annotation in written.values())


def _find_class(cls: type) -> RecordType | None:
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        style, keys = "fields", tuple(getattr(cls, "_fields", ()))
    elif dataclasses.is_dataclass(cls):
        style, keys = "dataclass", tuple(field.name for field in dataclasses.fields(cls))
    else:
        return None
    hints = hints_of_class(cls)
    label = f"{cls.__qualname__.rpartition('<locals>.')[2]}({', '.join(keys)})"
    return RecordType(cls, style, keys, tuple(hints.get(key, Any) for key in keys), label)


def row_of(cls: type, annotations: Sequence[Any]) -> RecordType:
    """Return a list, a tuple or a torch.Size of a fixed length."""
    count = len(annotations)
    label = f"a {'tuple' if cls is tuple else 'list'} of {count}"
    return RecordType(cls, "items", tuple(map(str, range(count))), tuple(annotations), label)


def dict_of(keys: Sequence[Any], annotations: tuple[Any, ...] = ()) -> RecordType:
    """Return a dict with fixed keys."""
    return RecordType(dict, "keys", tuple(keys), annotations, f"a dict with the keys {', '.join(map(repr, keys))}")


def is_union(annotation: Any) -> bool:
    """Return True if an annotation is a union, written either way."""
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


PLAIN = (dict, OrderedDict, defaultdict, list, tuple, torch.Size)


def is_plain(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """Return True if a value is a container of Python's: a subclass may look things up otherwise, or have attributes.

    A NamedTuple is a tuple, and so is what torch.max returns.
    """
    is_row = isinstance(value, tuple) and (hasattr(value, "_fields") or hasattr(value, "n_fields"))
    return isinstance(value, kinds) and (type(value) in PLAIN or is_row)


def find_subclassed(value: Any) -> str | None:
    """Return the name of the container of Python that a value's class changes, or None if it changes none."""
    if is_plain(value, object):
        return None
    return next((kind.__name__ for kind in (dict, list, tuple) if isinstance(value, kind)), None)


def advise_plain(value: Any) -> str | None:
    """Return what to do about what torch.fx traces, or a subclass of a container of Python; None for other values."""
    if isinstance(value, Proxy):
        return WRAP
    base = find_subclassed(value)
    return None if base is None else f"make it a plain {base}: {base}(...)"


def describe(value: Any) -> str:
    """Return what a message calls a value that does not fit."""
    if isinstance(value, Tensor):
        return "a tensor"
    base = find_subclassed(value)
    if base is not None:
        return f"{type(value).__name__}, a subclass of {base}, of which the op would see less"
    if isinstance(value, dict):
        return f"a dict with the keys {', '.join(map(repr, value))}" if value else "an empty dict"
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{type(value).__name__}: {str(value)[:60]}"


def find_tree(written: Written, options: DeclarationOptions, refuse: Refusal) -> ArgumentTree | None:
    """Return the structure of a function's arguments and results, or None if none of them is a container."""
    if options.schema is not None or written.signature is None:  # what is wrong with it is said by inference.py
        return None
    if _returns_tensors(written) and _takes_plain_values(written, written.signature):
        return None
    from custom_autograd.containers.argument_tree import find_argument_tree  # imported where there may be containers

    return find_argument_tree(written.annotations, written.signature, options, refuse)


def _takes_plain_values(written: Written, signature: inspect.Signature) -> bool:
    """Return True if the schema knows each parameter; `*args` may be a tuple that it does not know."""
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return False
        if name in written.annotations and find_argument_type(written.annotations[name]) is None:
            return False
    return True


def _returns_tensors(written: Written) -> bool:
    """Return True if the schema knows the result, or each one of a tuple."""
    returned = written.annotations.get("return")
    parts = typing.get_args(returned) if typing.get_origin(returned) is tuple else (returned,)
    return returned is None or None not in map(find_return_spelling, parts)
