"""Tensors, numbers and constants inside a container whose shape varies, and lists, dicts and unions of those.

`encode` runs in every call, also while Dynamo traces it: plain loops over plain containers.
"""

from __future__ import annotations

import enum
import typing
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from custom_autograd.containers.named_fields import advise_plain, describe, is_plain
from custom_autograd.containers.treespecs import MisfitError, name_of
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.schema.types import classes_held_as

LITERALS = (*classes_held_as("="), type(None))
TORCH_CONSTANTS = classes_held_as("t")


class Parts:
    """Values that travel next to the text of a structure."""

    __slots__ = ("floats", "ints", "tensors")

    def __init__(self) -> None:
        self.tensors: list[Any] = []  # Any: tensors, and numbers as a program writes them, symbols among them
        self.ints: list[Any] = []
        self.floats: list[Any] = []

    def shorten(self, tensors: int, ints: int, floats: int) -> None:
        """Take back what was added since."""
        del self.tensors[tensors:], self.ints[ints:], self.floats[floats:]


class Kind(typing.Protocol):
    """One kind of value."""

    def encode(self, value: Any, parts: Parts, path: str) -> str:
        """Return the text of a value's structure; what travels next to it is added to `parts`."""
        ...

    def accepts(self, value: Any) -> bool:
        """Return True if a value looks like one of this kind, seen from outside."""
        ...

    def inner(self) -> Sequence[Kind]:
        """Return the kinds that may stand inside."""
        ...


def refuse(path: str, expected: str, value: Any, found: str | None = None) -> NoReturn:
    """Raise what says that a value is of another kind."""
    raise MisfitError(path, expected, found or describe(value), advise_plain(value))


@dataclass(frozen=True, slots=True)
class Single:
    """A tensor ("T"), an int ("I") or a float ("F")."""

    letter: str

    @property
    def label(self) -> str:
        """Return what a message calls it."""
        return {"T": "a tensor", "I": "an int", "F": "a float"}[self.letter]

    def encode(self, value: Any, parts: Parts, path: str) -> str:
        """Implement `Kind`."""
        if not self.accepts(value):
            refuse(path, self.label, value)
        if self.letter == "T":
            parts.tensors.append(value)
        elif self.letter == "I":
            parts.ints.append(value)
        else:
            parts.floats.append(float(value) if type(value) is int else value)
        return f"'{self.letter}'"

    def accepts(self, value: Any) -> bool:
        """Implement `Kind`."""
        if self.letter == "T":
            return isinstance(value, Tensor)
        if isinstance(value, bool):
            return False
        if self.letter == "I":
            return isinstance(value, (int, torch.SymInt))
        return isinstance(value, (float, torch.SymFloat, int))

    def inner(self) -> Sequence[Kind]:
        """Implement `Kind`."""
        return ()


def _article(kind: type) -> str:
    return "None" if kind is type(None) else f"a {kind.__name__}"


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is part of the structure: bool, str, None, complex, Enum, dtype, device, ..."""

    types: tuple[type, ...]
    values: tuple[Any, ...] = ()

    @property
    def label(self) -> str:
        """Return what a message calls it."""
        names = [repr(one) for one in self.values] or [_article(one) for one in self.types]
        return " or ".join(names)

    def encode(self, value: Any, parts: Parts, path: str) -> str:
        """Implement `Kind`."""
        if not self.accepts(value):
            refuse(path, self.label, value)
        if isinstance(value, enum.Enum):
            member = value.value if isinstance(value, enum.Flag) else value.name
            return f"('e', {name_of(type(value))!r}, {member!r})"
        if isinstance(value, complex):
            return f"('c', {str(value.real)!r}, {str(value.imag)!r})"
        if isinstance(value, torch.device):
            return f"('t', {'device ' + str(value)!r})"
        if isinstance(value, TORCH_CONSTANTS):
            return f"('t', {'constant ' + str(value)!r})"
        return f"('=', {value!r})"

    def accepts(self, value: Any) -> bool:
        """Implement `Kind`."""
        if self.values:
            return any(type(value) is type(one) and value == one for one in self.values)
        is_single = isinstance(value, (enum.Enum, *TORCH_CONSTANTS))
        return type(value) in self.types or (is_single and isinstance(value, self.types))

    def inner(self) -> Sequence[Kind]:
        """Implement `Kind`."""
        return ()


@dataclass(frozen=True, slots=True)
class Choice:
    """A union: the first kind that accepts the value."""

    kinds: tuple[Kind, ...]
    label: str

    def encode(self, value: Any, parts: Parts, path: str) -> str:
        """Implement `Kind`."""
        able = [kind for kind in self.kinds if kind.accepts(value)]
        for kind in able[:-1]:
            lengths = len(parts.tensors), len(parts.ints), len(parts.floats)
            try:
                return kind.encode(value, parts, path)
            except MisfitError:  # list[int] | list[Tensor]: both look like lists from outside
                parts.shorten(*lengths)
        if not able:
            refuse(path, self.label, value)
        return able[-1].encode(value, parts, path)

    def accepts(self, value: Any) -> bool:
        """Implement `Kind`."""
        return any(kind.accepts(value) for kind in self.kinds)

    def inner(self) -> Sequence[Kind]:
        """Implement `Kind`."""
        return self.kinds


@dataclass(frozen=True, slots=True)
class Many:
    """A list, or a tuple of any length, of one kind."""

    kind: Kind
    is_tuple: bool = False

    def encode(self, value: Any, parts: Parts, path: str) -> str:
        """Implement `Kind`."""
        if not self.accepts(value):
            refuse(path, "a tuple" if self.is_tuple else "a list", value)
        texts = [f", {self.kind.encode(item, parts, f'{path}[{index}]')}" for index, item in enumerate(value)]
        head = "z" if type(value) is torch.Size else "u" if isinstance(value, tuple) else "l"
        return f"('{head}',{''.join(texts)[1:]})"

    def accepts(self, value: Any) -> bool:
        """Implement `Kind`."""
        return type(value) in (list, tuple, torch.Size)

    def inner(self) -> Sequence[Kind]:
        """Implement `Kind`."""
        return (self.kind,)


@dataclass(frozen=True, slots=True)
class Table:
    """A dict of any keys (str, int or bool) to one kind."""

    key: Constant | Single
    kind: Kind

    def encode(self, value: Any, parts: Parts, path: str) -> str:
        """Implement `Kind`."""
        if not self.accepts(value):
            refuse(path, "a dict", value)
        texts = []
        for key, item in value.items():
            if not (type(key) in (str, int, bool) and self.key.accepts(key)):
                refuse(f"{path}, key {key!r}", self.key.label, key)
            texts.append(f"({key!r}, {self.kind.encode(item, parts, f'{path}[{key!r}]')})")
        return f"('d',{', '.join(texts)})"

    def accepts(self, value: Any) -> bool:
        """Implement `Kind`."""
        return is_plain(value, dict)

    def inner(self) -> Sequence[Kind]:
        """Implement `Kind`."""
        return (self.kind,)
