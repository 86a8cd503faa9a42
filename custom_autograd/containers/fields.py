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
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor

from custom_autograd.containers import treespecs
from custom_autograd.containers.leaf_types import Kind, no_parts, refuse
from custom_autograd.containers.named_fields import RecordType, describe, find_record
from custom_autograd.containers.treespecs import MisfitError, TreeSpec
from custom_autograd.core.messages import quote
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.schema.annotations import resolve
from custom_autograd.schema.declaration_options import DeclarationOptions, Refusal
from custom_autograd.schema.parsing import check_own_names
from custom_autograd.schema.types import find_return_spelling

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
        """Return a value of a call, as one value per flat name."""
        ...

    def give(self, get: Get) -> Any:
        """Return the inverse of `take`, from values by flat name."""
        ...

    def mirror(self, get: Get, structure: Get, blank: Any = None) -> Any:
        """Return the same shape with another value for each tensor, such as a gradient or a tangent."""
        ...

    def collect(self, value: Any, structure: Get) -> dict[str, Any]:
        """Return what a rule gave for it, by flat name; the inverse of `mirror`."""
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
            self.kind.encode(value, no_parts(), self.path)  # says what is expected
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

    def _rows(self) -> dict[str, tuple[str, Any]]:
        """Return letter -> flat name and annotation of what travels next to the structure."""
        rows = {"T": ("", list[Tensor]), "I": ("_ints", list[int]), "F": ("_floats", list[float])}
        return {letter: (self.name + end, row) for letter, (end, row) in rows.items() if letter in self.inside}

    def flat(self) -> dict[str, Any]:
        """Implement `Node`."""
        return {**dict(self._rows().values()), self.text: str}

    def take(self, value: Any) -> list[Any]:
        """Implement `Node`."""
        parts = no_parts()
        text = self.kind.encode(value, parts, self.path)
        return [*(row for letter, row in parts.items() if letter in self.inside), text]

    def give(self, get: Get) -> Any:
        """Implement `Node`."""
        rows = {letter: iter(get(name)) for letter, (name, _) in self._rows().items()}
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

    def _treespec(self, get: Get) -> TreeSpec | str:
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


@dataclass(frozen=True, slots=True)
class Results:
    """The results of one op.

    Attributes:
        nodes: one per output, in order.
        record: the container that a call returns, where it is more than a tuple.
        container: the container that a kernel returns; None for a dict whose keys are the names of the outputs.
        hidden: the outputs that a call does not return.
    """

    nodes: tuple[Node, ...]
    record: RecordType | None
    container: RecordType | None
    hidden: tuple[str, ...]

    def flat_names(self) -> tuple[str, ...]:
        """Return the flat outputs, in order."""
        return tuple(name for node in self.nodes for name in node.flat())

    def flat_annotation(self) -> Any:
        """Return what the flat op returns."""
        annotations = [annotation for node in self.nodes for annotation in node.flat().values()]
        return annotations[0] if len(annotations) == 1 else tuple[tuple(annotations)]  # type: ignore[misc]

    @property
    def visible(self) -> tuple[Node, ...]:
        """Return what a call returns."""
        return tuple(node for node in self.nodes if node.name not in self.hidden)

    def take(self, value: Any) -> Any:
        """Return what a kernel returned, as the flat op returns it."""
        flat = [one for node, item in zip(self.nodes, self._items(value), strict=True) for one in node.take(item)]
        return flat[0] if len(flat) == 1 else tuple(flat)

    def _items(self, value: Any, *, is_loose: bool = False) -> tuple[Any, ...]:
        """Return the value of each output; if `is_loose`, a container may also be given as a dict by key."""
        keys = tuple(node.name for node in self.nodes)
        if self.container is not None:
            found = self.container.read(value)
            if found is None and is_loose:
                by_key = self.container.read_loosely(value)
                found = None if by_key is None else tuple(by_key.get(key) for key in self.container.keys)
            if found is None:
                raise MisfitError("the result", self.container.label, self.container.describe(value))
            return found
        if not isinstance(value, dict) or set(value) != set(keys):
            raise MisfitError("the result", f"a dict with the keys {', '.join(map(repr, keys))}", describe(value))
        return tuple(value[key] for key in keys)

    def give(self, result: Any) -> Any:
        """Return what a call returns, from what the flat call returned."""
        names = [name for node in self.visible for name in node.flat()]
        values = dict(zip(names, result if len(names) != 1 else (result,), strict=True))
        found = [node.give(values.__getitem__) for node in self.visible]
        if not self.hidden and self.record is not None:
            return self.record.make(found)
        if not self.hidden and self.container is None:
            return {node.name: value for node, value in zip(self.nodes, found, strict=True)}
        return found[0] if self.hidden and len(found) == 1 else tuple(found)

    def pairs(self, value: Any) -> list[tuple[Node, Any]]:
        """Return each output with its value in a container like the one that a kernel returns."""
        return list(zip(self.nodes, self._items(value), strict=True))

    def put(self, values: Mapping[str, Any]) -> Any:
        """Return what a kernel returned, hidden outputs included, from values by flat name."""
        found = [node.give(values.__getitem__) for node in self.nodes]
        if self.container is None:
            return {node.name: value for node, value in zip(self.nodes, found, strict=True)}
        return self.container.make(found)

    def take_dims(self, dims: Any) -> Any:
        """Return the out_dims of a vmap rule as the flat op gives them; one number may serve a whole container."""
        is_one = dims is None or isinstance(dims, int)
        items = [dims] * len(self.nodes) if is_one else self._items(dims, is_loose=True)
        found = [one for node, item in zip(self.nodes, items, strict=True) for one in _spread(node, item)]
        return found[0] if len(found) == 1 else tuple(found)


def _spread(node: Node, dims: Any) -> list[Any]:
    if dims is None or isinstance(dims, int):
        return [dims] * len(node.flat())
    if not isinstance(node, Record):
        return [dims]
    found = node.record.read_loosely(dims)
    if found is None:
        raise MisfitError(f"out_dims of '{node.path}'", node.record.label, describe(dims))
    return [
        one for key, field in zip(node.record.keys, node.fields, strict=True) for one in _spread(field, found.get(key))
    ]


def results_of(annotation: Any, options: DeclarationOptions, refuse: Refusal) -> Results | None:
    """Return the results, where the schema cannot say them itself."""
    record = find_record(annotation)
    parts, names = _parts(annotation, record, options)
    is_native = record is not None and record.style in ("fields", "items")
    if parts is None or (is_native and all(find_return_spelling(part) is not None for part in parts)):
        return None
    given = names if options.outputs is None else options.outputs
    if len(given) != len(parts):
        raise refuse(
            "outputs= does not have one name per output",
            expected=f"{len(parts)} names",
            found=f"{len(given)}: {quote(given)}",
        )
    check_own_names(given, names if record is not None and record.style != "items" else (), refuse)
    nodes = tuple(_output(name, part, refuse) for name, part in zip(given, parts, strict=True))
    return Results(nodes, record if record is not None and record.style != "items" else None, record, options.hidden)


def _parts(
    annotation: Any, record: RecordType | None, options: DeclarationOptions
) -> tuple[Sequence[Any] | None, tuple[str, ...]]:
    """Return the annotation and the name of each field of a result; None if it is not a container."""
    origin, items = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is dict and items[0] is str and options.outputs is not None:
        return [items[1]] * len(options.outputs), tuple(options.outputs)
    if record is None or record.style == "slice":
        return None, ()
    if record.style != "items":
        return record.annotations, record.keys
    return record.annotations, tuple(f"output_{index}" for index in range(len(record.keys)))


def _output(name: str, annotation: Any, refuse: Refusal) -> Node:
    annotation = resolve(annotation)
    if find_return_spelling(annotation) is not None:
        return Plain(name, name, annotation)
    record = find_record(annotation)
    if record is None or record.style == "slice":
        raise refuse(
            f"the output '{name}' has an annotation that is not supported",
            expected="Tensor, Tensor | None, list[Tensor], int, float, bool, and NamedTuples, dataclasses, TypedDicts "
            "and tuples of those",
            found=inspect.formatannotation(annotation),
            do="return containers with a fixed number of tensors, or a list of tensors",
        )
    fields = [
        replace(_output(f"{name}_{key}", one, refuse), path=name + record.path(index))  # type: ignore[type-var]
        for index, (key, one) in enumerate(zip(record.keys, record.annotations, strict=True))
    ]
    return Record(name, name, record, tuple(fields))


def check_hidden(results: Results | None, options: DeclarationOptions, refuse: Refusal) -> None:
    """Refuse to hide part of an output: what a call returns would have a hole otherwise."""
    nodes = () if results is None else results.nodes
    inside = [node.path for node in all_nodes(nodes) if node not in nodes]
    for name in options.hidden:
        if name in inside:
            raise refuse(
                f"hidden= names '{name}', which is a place in an output",
                expected=quote(node.name for node in nodes),
                found=repr(name),
                do="hide the whole output, or return what is hidden beside it",
            )
