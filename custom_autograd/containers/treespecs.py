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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch

from custom_autograd.containers.named_fields import RecordType, describe, find_record
from custom_autograd.core.errors import KernelError
from custom_autograd.schema.conversions import find_imported, reason_and_advice
from custom_autograd.torch_private.compiler import constant_in_graphs
from custom_autograd.torch_private.trees import NodeType, find_node_type

TreeSpec = Any  # a nested tuple, as above
CONSTANTS = ("=", "t", "e", "c")
CLASSES: dict[str, type] = {}
"""The classes that texts of this process name: declared ones, and those met in a call."""
_NAMES: dict[type, str] = {}
_PARSED: dict[str, TreeSpec] = {}
MOST_PARSED = 4096


@constant_in_graphs
def name_of(cls: type) -> str:
    """Return the name of a class in a text: "module:qualname"; a second class of that name gets "#2"."""
    found = _NAMES.get(cls)
    if found is None:
        name = found = f"{cls.__module__}:{cls.__qualname__}"
        number = 1
        while found in CLASSES:
            number += 1
            found = f"{name}#{number}"
        _NAMES[cls], CLASSES[found] = found, cls
    return found


def parse(text: str) -> TreeSpec:
    """Return the nested tuple of a text; parsed once, and forgotten where there are too many."""
    found = _PARSED.get(text)
    if found is None:
        if len(_PARSED) >= MOST_PARSED:
            _PARSED.clear()
        try:
            found = _PARSED[text] = ast.literal_eval(text)
        except (MemoryError, RecursionError):
            problem = "a container is nested too deeply to travel"
            raise KernelError("containers", problem, do="pass what is in it as a list") from None
    return found


class MisfitError(Exception):
    """A value that does not have the structure that was declared; its arguments are the three attributes.

    Attributes:
        path: where.
        expected: what is expected there.
        found: what is there.
        advice: what to do, where that is known.
    """

    path = property(lambda self: self.args[0])
    expected = property(lambda self: self.args[1])
    found = property(lambda self: self.args[2])
    advice = property(lambda self: self.args[3] if len(self.args) > 3 else None)


def count_tensors(node: TreeSpec) -> int:
    """Return how many tensors a structure holds."""
    return 1 if node == "T" else 0 if isinstance(node, str) else sum(count_tensors(child) for child in children(node))


def children(node: TreeSpec) -> tuple[TreeSpec, ...]:
    """Return the children of a container; nothing for a constant."""
    tag = node[0]
    if tag == "d":
        return tuple(child for _, child in node[1:])
    found: tuple[TreeSpec, ...] = node[{"l": 1, "u": 1, "z": 1, "s": 1, "r": 2, "p": 3}.get(tag, len(node)) :]
    return found


def rebuild(node: TreeSpec, take: Callable[[str], Any], *, is_plain: bool = False) -> Any:
    """Return a value of a structure."""
    if isinstance(node, str):
        return take(node)
    tag = node[0]
    if tag in CONSTANTS:
        return None if is_plain else _constant(node)
    values = [rebuild(child, take, is_plain=is_plain) for child in children(node)]
    if tag == "l":
        return values
    if tag == "z":
        return tuple(values) if is_plain else torch.Size(values)
    if tag == "u" or (tag == "p" and is_plain):
        return tuple(values)
    if tag == "d":
        return dict(zip([key for key, _ in node[1:]], values, strict=True))
    if tag == "s":
        return tuple(values) if is_plain else slice(*values)
    if tag == "r":
        record = record_of(node[1])
        return record.make_plain(values) if is_plain else record.make(values)
    return node_of(node[1]).load(values, node[2])


def collect(node: TreeSpec, value: Any, path: str) -> Iterator[Any]:
    """Yield what a rule gave for each tensor of a structure, in order; None if it gave nothing."""
    if node == "T":
        yield value
    elif value is None or isinstance(node, str):
        yield from [None] * count_tensors(node)
    else:
        items = _items(node, value, path)
        for (label, child), item in zip(_labelled(node), items, strict=True):
            yield from collect(child, item, path + label)


def paths_of_tensors(node: TreeSpec, path: str) -> Iterator[str]:
    """Yield the key path of each tensor of a structure in messages, in order."""
    if node == "T":
        yield path
    elif not isinstance(node, str):
        for label, child in _labelled(node):
            yield from paths_of_tensors(child, path + label)


def _items(node: TreeSpec, value: Any, path: str) -> Sequence[Any]:
    tag, count = node[0], len(children(node))
    if tag in CONSTANTS:
        return ()
    if tag == "d":
        keys = [key for key, _ in node[1:]]
        if isinstance(value, Mapping) and set(value) == set(keys):
            return [value[key] for key in keys]
        _misfit(path, f"a dict with the keys {', '.join(map(repr, keys))}", value)
    if tag == "r":
        found = record_of(node[1]).read_loosely(value)
        if found is not None and len(found) == count:
            return [found[key] for key in record_of(node[1]).keys]
        _misfit(path, record_of(node[1]).label, value)
    if tag == "p" and isinstance(value, node_of(node[1]).cls):
        found_children, context = node_of(node[1]).dump(value)
        if context == node[2]:
            return found_children
        _misfit(path, f"a {node_of(node[1]).cls.__name__} like the argument, with the context {node[2]!r}", context)
    if isinstance(value, (list, tuple)) and len(value) == count:
        return value
    return _misfit(path, f"a {'tuple' if tag == 'u' else 'list'} of {count}", value)


def _labelled(node: TreeSpec) -> list[tuple[str, TreeSpec]]:
    """Return each child of a container, with its key path in messages."""
    if node[0] == "d":
        return [(f"[{key!r}]", child) for key, child in node[1:]]
    if node[0] == "r":
        record = record_of(node[1])
        return [(record.path(index), child) for index, child in enumerate(children(node))]
    return [(f"[{index}]", child) for index, child in enumerate(children(node))]


def _misfit(path: str, expected: str, value: Any) -> NoReturn:
    raise MisfitError(path, expected, describe(value))


def record_of(name: str) -> RecordType:
    """Return the NamedTuple or dataclass that a text names."""
    found = find_record(_class_of(name))
    assert found is not None, name
    return found


def node_of(name: str) -> NodeType:
    """Return the registered pytree node that a text names."""
    found = find_node_type(_class_of(name))
    assert found is not None, name
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


def _constant(node: TreeSpec) -> Any:
    if node[0] == "=":
        return node[1]
    if node[0] == "c":
        return complex(float(node[1]), float(node[2]))
    if node[0] == "e":
        cls = _class_of(node[1])
        assert issubclass(cls, enum.Enum)
        return cls(node[2]) if issubclass(cls, enum.Flag) else cls[node[2]]
    kind, _, name = node[1].partition(" ")
    return torch.device(name) if kind == "device" else getattr(torch, name.removeprefix("torch."))
