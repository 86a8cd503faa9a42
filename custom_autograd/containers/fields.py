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
from typing import Any

from torch import Tensor

from custom_autograd.containers import treespecs
from custom_autograd.containers.leaf_types import Kind, no_parts, refuse
from custom_autograd.containers.named_fields import RecordType, dict_of, find_record
from custom_autograd.containers.treespecs import MisfitError, TreeSpec
from custom_autograd.core.messages import quote
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.schema.annotations import DeclarationOptions, Refusal, resolve
from custom_autograd.schema.parsing import check_output_names
from custom_autograd.schema.types import find_return_spelling

Get = Callable[[str], Any]  # Any: the value of a flat name


@dataclass(frozen=True, slots=True)
class Plain:
    """An argument or result that the schema can express itself.

    Attributes:
        name: as its author spells it.
        path: as a message spells it.
        kind: of a field of a container, if known.
    """

    name: str
    path: str
    annotation: Any
    kind: Kind | None = None

    def flat(self) -> dict[str, Any]:
        """Return flat name -> annotation."""
        return {self.name: self.annotation}

    def take(self, value: Any) -> list[Any]:
        """Return a value of a call, as one value per flat name."""
        if self.kind is not None and not self.kind.accepts(value):
            self.kind.encode(value, no_parts(), self.path)  # says what is expected
        return [value]

    def give(self, get: Get) -> Any:
        """Return the inverse of `take`, from values by flat name."""
        return get(self.name)

    def mirror(self, get: Get, structure: Get, blank: Any = None) -> Any:
        """Return the same shape with another value for each tensor, such as a gradient or a tangent."""
        return get(self.name)

    def collect(self, value: Any, structure: Get) -> dict[str, Any]:
        """Return what a rule gave for it, by flat name; the inverse of `mirror`."""
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
        return {name: lambda name=name: self.collect(run(), structure).get(name) for name in names}


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
        text = treespecs.text_of(self.kind.encode(value, parts, self.path))
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


Node = Plain | Record | Free
"""One argument or result."""


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
        whole: the container that a kernel returns, with one node per output.
        hidden: the outputs that a call does not return.
    """

    whole: Record
    hidden: tuple[str, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Return the outputs, in order."""
        return self.whole.fields

    @property
    def visible(self) -> tuple[Node, ...]:
        """Return what a call returns."""
        return tuple(node for node in self.nodes if node.name not in self.hidden)

    def flat_names(self) -> tuple[str, ...]:
        """Return the flat outputs, in order."""
        return tuple(self.whole.flat())

    def flat_annotation(self) -> Any:
        """Return what the flat op returns."""
        annotations = tuple(self.whole.flat().values())
        return annotations[0] if len(annotations) == 1 else tuple[annotations]  # type: ignore[valid-type]

    def take(self, value: Any) -> Any:
        """Return what a kernel returned, as the flat op returns it."""
        return _one_or_more(self.whole.take(value))

    def give(self, result: Any) -> Any:
        """Return what a call returns, from what the flat call returned."""
        if not self.hidden:
            return self.put(result)
        values = _by_name([name for node in self.visible for name in node.flat()], result)
        return _one_or_more([node.give(values.__getitem__) for node in self.visible])

    def put(self, result: Any) -> Any:
        """Return what a kernel returned, hidden outputs included, from what the flat kernel returned."""
        return self.whole.give(_by_name(self.flat_names(), result).__getitem__)

    def find_pairs(self, value: Any) -> list[tuple[Node, Any]] | None:
        """Return each output with its value in a container of names like the one that a kernel returns; else None."""
        container = self.whole.record
        found = None if container.style == "items" or isinstance(value, Mapping) else container.read(value)
        return None if found is None else list(zip(self.nodes, found, strict=True))

    def take_dims(self, dims: Any) -> Any:
        """Return the out_dims of a vmap rule as the flat op gives them; one number may serve a whole container."""
        return _one_or_more(_spread(self.whole, dims, self.whole.path))


def _by_name(names: Sequence[str], result: Any) -> dict[str, Any]:
    return dict(zip(names, result if len(names) != 1 else (result,), strict=True))


def _one_or_more(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def _spread(node: Node, dims: Any, path: str) -> list[Any]:
    if dims is None or isinstance(dims, int):
        return [dims] * len(node.flat())
    if not isinstance(node, Record):
        return [dims]
    found = node.record.read_loosely(dims)
    if found is None:
        raise MisfitError(path, node.record.label, node.record.describe(dims))
    rows = zip(node.record.keys, node.fields, strict=True)
    return [one for key, field in rows for one in _spread(field, found.get(key), f"out_dims of '{field.path}'")]


def results_of(annotation: Any, options: DeclarationOptions, refuse: Refusal) -> Results | None:
    """Return the results, where the schema cannot say them itself."""
    container, items = find_record(annotation), typing.get_args(annotation)
    is_dict = typing.get_origin(annotation) is dict and items[0] is str and options.outputs is not None
    if is_dict:
        container = dict_of(options.outputs or ())
    if container is None or container.style == "slice":
        return None
    parts = [items[1]] * len(container.keys) if is_dict else container.annotations
    if container.style in ("fields", "items") and all(find_return_spelling(part) is not None for part in parts):
        return None
    own = container.keys if container.style != "items" else ()
    names = own or tuple(f"output_{index}" for index in range(len(parts)))
    given = names if options.outputs is None else options.outputs
    check_output_names(given, own, len(parts), refuse)
    nodes = tuple(_output(name, part, refuse) for name, part in zip(given, parts, strict=True))
    return Results(Record("", "the result", container, nodes), options.hidden)


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
        replace(_output(f"{name}_{key}", one, refuse), path=name + record.path(index))
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
                do="hide the whole output, or return what is hidden as another output",
            )
