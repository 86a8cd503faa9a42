"""What a function returns, as its author sees it, and the flat outputs of the dispatcher."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from custom_autograd.core.declaration_options import DeclarationOptions, Refusal
from custom_autograd.core.messages import quote
from custom_autograd.core.parsing import check_own_names
from custom_autograd.core.plain_types import resolve
from custom_autograd.core.types import find_return_spelling
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.pytrees.fields import Node, Plain, Record, all_nodes
from custom_autograd.pytrees.named_fields import RecordType, describe, find_record
from custom_autograd.pytrees.treespecs import MisfitError


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
        """Return what a kernel returned, as the flat op returns it.

        Raises:
            MisfitError: it has another structure.
        """
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
        """Return the out_dims of a vmap rule as the flat op gives them; one number may serve a whole container.

        Raises:
            MisfitError: it has another structure.
        """
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
