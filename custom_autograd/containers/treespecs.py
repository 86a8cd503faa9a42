"""The structure of a value as a constant text, and back: `('d', ('w', 'T'), ('n', 'I'))` for {"w": tensor, "n": 3}.

T, I and F stand where a tensor, an int or a float is: those travel next to the text, so that it is the same for all
values. Everything else is part of it: ('=', value) a bool, str or None; ('t', name) one of torch's constants;
('e', class, name) an Enum member, of a Flag its value; ('c', real, imaginary) a complex number.
Containers: ('l', ...) list, ('u', ...) tuple, ('z', ...) torch.Size, ('d', (key, ...), ...) dict,
('s', ...) slice, ('r', class, ...) NamedTuple or dataclass, ('p', class, context, ...) a registered pytree node.
The text is a Python literal: it hashes, compares and serialises, and an exported program shows it.
"""

from __future__ import annotations

import ast
import enum
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from custom_autograd.containers.named_fields import RecordType, describe, dict_of, find_record, row_of
from custom_autograd.core.errors import KernelError
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.schema.conversions import find_imported, reason_and_advice
from custom_autograd.torch_private.compiler import constant_in_graphs
from custom_autograd.torch_private.trees import NodeType, find_node_type


@dataclass(frozen=True, slots=True)
class TreeSpec:
    """A container of a structure with its children, "T", "I", "F" or another spec each; or a constant."""

    container: RecordType | None
    children: tuple[TreeSpec | str, ...] = ()
    constant: Any = None  # Any: a bool, a str, an Enum member, ...


@dataclass(frozen=True, slots=True)
class RegisteredRecord(RecordType):
    """An instance of a class that is registered as a pytree node: a row of children, and a context."""

    node: NodeType
    context: Any  # Any: what the class writes down

    def make(self, values: Sequence[Any]) -> Any:
        """Override `RecordType`."""
        return self.node.load(list(values), self.context)

    def read_loosely(self, value: Any) -> dict[str, Any] | None:
        """Override `RecordType`: also from an instance, if its context is the same."""
        if not isinstance(value, self.node.cls):
            return RecordType.read_loosely(self, value)
        found, context = self.node.dump(value)
        return dict(zip(self.keys, found, strict=True)) if context == self.context else None

    def describe(self, value: Any) -> str:
        """Override `RecordType`."""
        return describe(self.node.dump(value)[1] if isinstance(value, self.node.cls) else value)


class MisfitError(Exception):
    """A value that does not have the structure that was declared: where, what is expected, what is there, what to do.

    It has no `__init__`: see `raise_text`.
    """

    path = property(lambda self: self.args[0])
    expected = property(lambda self: self.args[1])
    found = property(lambda self: self.args[2])
    advice = property(lambda self: self.args[3] if len(self.args) > 3 else None)


CLASSES: dict[str, type] = {}
"""The classes that texts of this process name: declared ones, and those met in a call."""
# Each call reads a text, and most are the same ones. Dynamo, which sees through a cache of functools, reads the table.
_PARSED: dict[str, TreeSpec | str] = {}
MOST_PARSED = 4096


@constant_in_graphs
def name_of(cls: type) -> str:
    """Return the name of a class in a text, which it keeps: "module:qualname"; a second one of that name gets "#2"."""
    name = found = f"{cls.__module__}:{cls.__qualname__}"
    number = 1
    while CLASSES.setdefault(found, cls) is not cls:
        number += 1
        found = f"{name}#{number}"
    return found


def _class_of(name: str) -> type:
    found: Any = CLASSES.get(name)
    if found is None:
        found = find_imported(name)
        if not isinstance(found, type):
            reason, advice = reason_and_advice(name)
            problem, expected = "a container is of a class that cannot be found", "a class in an imported module"
            raise KernelError("containers", problem, expected=expected, found=reason, do=advice)
        CLASSES[name] = found
    cls: type = found
    return cls


def constant_of(value: Any) -> Any:  # Any: a value that is part of a structure, such as a context
    """Return a value without symbols, for the text of a structure: a graph is guarded on the sizes in it."""
    cls = type(value)
    if cls in (bool, torch.SymBool):
        return True if value else False  # noqa: SIM210  # `bool(value)` is a symbol in Dynamo
    if cls in (int, torch.SymInt):
        return operator.index(value)
    if cls in (float, torch.SymFloat):
        return float.fromhex(value.hex()) if torch.compiler.is_dynamo_compiling() else float(value)
    if cls in (list, tuple):
        return cls([constant_of(item) for item in value])
    return {key: constant_of(item) for key, item in value.items()} if cls is dict else value


def is_constant(value: Any) -> bool:  # Any: as above
    """Return True if the text of a structure can hold a value: bools, numbers, strings and containers of those."""
    if isinstance(value, (list, tuple)):
        return type(value) in (list, tuple) and all(is_constant(item) for item in value)
    if isinstance(value, dict):
        return all(is_constant(item) for row in value.items() for item in row)
    if isinstance(value, float):
        return math.isfinite(value)
    return type(value) in (bool, int, str, type(None))


@constant_in_graphs
def text_of(spec: Any) -> str:
    """Return the text of a structure."""
    return repr(spec)


def parse(text: str) -> TreeSpec | str:
    """Return the structure that a text says; parsed once, and forgotten where there are too many."""
    found = _PARSED.get(text)
    if found is None:
        if len(_PARSED) >= MOST_PARSED:
            _PARSED.clear()
        try:
            found = _PARSED[text] = _parsed(ast.literal_eval(text))
        except (MemoryError, RecursionError):
            problem = "a container is nested too deeply to travel"
            raise KernelError("containers", problem, do="pass what is in it as a list") from None
    return found


def _parsed(node: Any) -> TreeSpec | str:
    if isinstance(node, str):
        return node
    tag, *rest = node
    container: RecordType | None
    if tag in CONSTANTS:
        return TreeSpec(None, (), CONSTANTS[tag](*rest))
    if tag == "d":
        container, rest = dict_of([key for key, _ in rest]), [child for _, child in rest]
    elif tag in ROWS:
        container = row_of(ROWS[tag], [Any] * len(rest))
    elif tag == "p":
        name, context, *rest = rest
        container = _registered(_class_of(name), context, len(rest))
    else:
        container = find_record(slice if tag == "s" else _class_of(rest.pop(0)))
    assert container is not None, node
    return TreeSpec(container, tuple(map(_parsed, rest)))


def _registered(cls: type, context: Any, count: int) -> RegisteredRecord:
    node, row = find_node_type(cls), row_of(tuple, [Any] * count)
    assert node is not None, cls
    label = f"a {cls.__name__} like the argument, with the context {context!r}"
    return RegisteredRecord(tuple, "items", row.keys, row.annotations, label, node, context)


def _enum_member(name: str, member: Any) -> enum.Enum:
    cls = _class_of(name)
    assert issubclass(cls, enum.Enum)
    return cls(member) if issubclass(cls, enum.Flag) else cls[member]


def _torch_constant(text: str) -> Any:
    kind, _, name = text.partition(" ")
    return torch.device(name) if kind == "device" else getattr(torch, name.removeprefix("torch."))


CONSTANTS: dict[str, Callable[..., Any]] = {
    "=": lambda value: value,
    "t": _torch_constant,
    "e": _enum_member,
    "c": lambda real, imaginary: complex(float(real), float(imaginary)),
}
ROWS = {"l": list, "u": tuple, "z": torch.Size}


def count_tensors(node: TreeSpec | str) -> int:
    """Return how many tensors a structure holds."""
    return int(node == "T") if isinstance(node, str) else sum(map(count_tensors, node.children))


def rebuild(node: TreeSpec | str, take: Callable[[str], Any], *, is_plain: bool = False) -> Any:
    """Return a value of a structure; if `is_plain`, the same shape without constants: no code of a user runs."""
    if isinstance(node, str):
        return take(node)
    if node.container is None:
        return None if is_plain else node.constant
    values = [rebuild(child, take, is_plain=is_plain) for child in node.children]
    return node.container.make_plain(values) if is_plain else node.container.make(values)


def collect(node: TreeSpec | str, value: Any, path: str) -> Iterator[Any]:
    """Yield what a rule gave for each tensor of a structure, in order; None if it gave nothing."""
    if node == "T":
        yield value
    elif value is None or isinstance(node, str) or node.container is None:
        yield from [None] * count_tensors(node)
    else:
        container, found = node.container, node.container.read_loosely(value)
        if found is None or len(found) != len(node.children):
            raise MisfitError(path, container.label, container.describe(value))
        for index, key in enumerate(container.keys):
            yield from collect(node.children[index], found[key], path + container.path(index))


def paths_of_tensors(node: TreeSpec | str, path: str) -> Iterator[str]:
    """Yield the key path of each tensor of a structure in messages, in order."""
    if node == "T":
        yield path
    elif not isinstance(node, str) and node.container is not None:
        for index, child in enumerate(node.children):
            yield from paths_of_tensors(child, path + node.container.path(index))
