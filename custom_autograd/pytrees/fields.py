"""One argument or result as its author sees it, and its flat ones in the dispatcher.

Plain     what the schema can say itself: one flat argument of the same name
Record    a NamedTuple, a dataclass, a TypedDict, a tuple of fixed length or a slice: one or more per field, named
          after argument and field (`params.weight` travels as `params_weight`)
Free      whatever varies from call to call (dict[str, Tensor], list[tuple[Tensor, int]], an optional record): its
          tensors as a list under its own name, its ints and floats as `<name>_ints` and `<name>_floats`, and the
          rest as a constant text, `<name>_structure`
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from torch import Tensor

from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.pytrees import treespecs as treespecs
from custom_autograd.pytrees.basic_leaf_types import Kind, Parts, refuse
from custom_autograd.pytrees.named_fields import RecordType
from custom_autograd.pytrees.treespecs import TreeSpec

Flat = Mapping[str, Any]  # Any: values of every type, by flat name
Get = Callable[[str], Any]  # the value of a flat name


class Node(Protocol):
    """One argument or result."""

    @property
    def name(self) -> str:
        """Return the name as its author spells it."""
        ...

    @property
    def path(self) -> str:
        """Return the path as a message spells it."""
        ...

    def flat(self) -> dict[str, Any]:
        """Return flat name -> annotation."""
        ...

    def take(self, value: Any) -> list[Any]:
        """Return a value of a call, as one value per flat name.

        Raises:
            MisfitError: it is not what was declared.
        """
        ...

    def give(self, get: Get) -> Any:
        """Return the inverse of `take`, from values by flat name."""
        ...

    def mirror(self, get: Get, structure: Get, blank: Any = None) -> Any:
        """Return the same shape with another value for each tensor: a gradient, a tangent, whether it needs a gradient.

        Args:
            get: the value of a flat name; a list for a list, `blank` for nothing.
            structure: the text of a structure, by its flat name.
            blank: the value for what is not a tensor.
        """
        ...

    def collect(self, value: Any, structure: Get) -> dict[str, Any]:
        """Return what a rule gave for it, by flat name; the inverse of `mirror`.

        Raises:
            MisfitError: the rule gave something of another shape.
        """
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """An argument or result that the schema can express itself."""

    name: str
    path: str
    annotation: Any
    kind: Kind | None = None  # of a field of a container, if known

    def flat(self) -> dict[str, Any]:
        """Implement `Node`."""
        return {self.name: self.annotation}

    def take(self, value: Any) -> list[Any]:
        """Implement `Node`."""
        if self.kind is not None and not self.kind.accepts(value):
            self.kind.encode(value, Parts(), self.path)  # says what is expected
        return [value]

    def give(self, get: Get) -> Any:
        """Implement `Node`."""
        return get(self.name)

    def mirror(self, get: Get, structure: Get, blank: Any = None) -> Any:
        """Implement `Node`."""
        return get(self.name)

    def collect(self, value: Any, structure: Get) -> dict[str, Any]:
        """Implement `Node`."""
        return {self.name: value}


@dataclass(frozen=True, slots=True)
class Record:
    """A container with a fixed set of fields."""

    name: str
    path: str
    record: RecordType
    fields: tuple[Node, ...]

    def flat(self) -> dict[str, Any]:
        """Implement `Node`."""
        return {name: annotation for field in self.fields for name, annotation in field.flat().items()}

    def take(self, value: Any) -> list[Any]:
        """Implement `Node`."""
        found = self.record.read(value)
        if found is None:
            refuse(self.path, self.record.label, value, self.record.describe(value))
        return [one for i, field in enumerate(self.fields) for one in field.take(found[i])]

    def give(self, get: Get) -> Any:
        """Implement `Node`."""
        return self.record.make([field.give(get) for field in self.fields])

    def mirror(self, get: Get, structure: Get, blank: Any = None) -> Any:
        """Implement `Node`."""
        return self.record.make_plain([field.mirror(get, structure, blank) for field in self.fields])

    def collect(self, value: Any, structure: Get) -> dict[str, Any]:
        """Implement `Node`."""
        if value is None:
            return {name: None for field in self.fields for name in field.collect(None, structure)}
        if callable(value) and not isinstance(value, (Tensor, self.record.cls)):
            return self._collect_later(functools.cache(value), structure)
        found = self.record.read_loosely(value)
        if found is None:
            refuse(self.path, self.record.label, value, self.record.describe(value))
        collected: dict[str, Any] = {}
        for key, field in zip(self.record.keys, self.fields, strict=True):
            if key in found:
                collected.update(field.collect(found[key], structure))
        return collected

    def _collect_later(self, run: Callable[[], Any], structure: Get) -> dict[str, Any]:
        """Return a callable for each field: the rule for the whole runs once, when the first of them is needed."""
        names = self.collect(None, structure)
        return {name: lambda name=name: _run(self.collect(run(), structure).get(name)) for name in names}


def _run(value: Any) -> Any:
    return value() if callable(value) and not isinstance(value, Tensor) else value


@dataclass(frozen=True, slots=True)
class Free:
    """A container whose shape varies from call to call."""

    name: str
    path: str
    kind: Kind
    inside: frozenset[str]  # which of "T", "I" and "F" may stand in it

    @property
    def text(self) -> str:
        """Return the flat name of its structure."""
        return f"{self.name}_structure"

    def flat(self) -> dict[str, Any]:
        """Implement `Node`."""
        types: dict[str, Any] = {"T": list[Tensor], "I": list[int], "F": list[float]}
        names = {"T": self.name, "I": f"{self.name}_ints", "F": f"{self.name}_floats"}
        return {**{names[letter]: kind for letter, kind in types.items() if letter in self.inside}, self.text: str}

    def take(self, value: Any) -> list[Any]:
        """Implement `Node`."""
        parts = Parts()
        text = self.kind.encode(value, parts, self.path)
        rows = (("T", parts.tensors), ("I", parts.ints), ("F", parts.floats))
        return [*(row for letter, row in rows if letter in self.inside), text]

    def give(self, get: Get) -> Any:
        """Implement `Node`."""
        names = {"T": self.name, "I": f"{self.name}_ints", "F": f"{self.name}_floats"}
        rows = {letter: iter(get(name)) for letter, name in names.items() if letter in self.inside}
        return treespecs.rebuild(self._treespec(get), lambda letter: next(rows[letter]))

    def mirror(self, get: Get, structure: Get, blank: Any = None) -> Any:
        """Implement `Node`."""
        node = self._treespec(structure)
        found = get(self.name) if "T" in self.inside else None
        row = iter(found if isinstance(found, (list, tuple)) else [blank] * treespecs.count_tensors(node))
        return treespecs.rebuild(node, lambda letter: next(row) if letter == "T" else blank, is_plain=True)

    def collect(self, value: Any, structure: Get) -> dict[str, Any]:
        """Implement `Node`."""
        if value is None or "T" not in self.inside:
            return {self.name: None}
        node = self._treespec(structure)
        if callable(value) and not isinstance(value, Tensor):
            return {self.name: lambda: list(treespecs.collect(node, value(), self.path))}
        return {self.name: list(treespecs.collect(node, value, self.path))}

    def paths(self, structure: Get) -> list[str]:
        """Return the key path of each tensor in messages, in order; `structure` as in `mirror`."""
        return list(treespecs.paths_of_tensors(self._treespec(structure), self.path))

    def _treespec(self, get: Get) -> TreeSpec:
        return treespecs.parse(get(self.text))


def plain_fields(nodes: tuple[Node, ...]) -> Iterator[Plain]:
    """Yield every flat value that is a field or an argument."""
    for node in nodes:
        if isinstance(node, Plain):
            yield node
        elif isinstance(node, Record):
            yield from plain_fields(node.fields)


def all_nodes(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield the nodes and everything in their fields."""
    for node in nodes:
        yield node
        if isinstance(node, Record):
            yield from all_nodes(node.fields)
