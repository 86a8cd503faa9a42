"""What a function returns, as its author sees it, and the flat outputs that the dispatcher knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from custom_autograd.structures.nodes import Node, Record
from custom_autograd.structures.records import RecordType, describe
from custom_autograd.structures.skeletons import MisfitError


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
        """The flat outputs, in order."""
        return tuple(name for node in self.nodes for name in node.flat())

    def flat_annotation(self) -> Any:
        """What the flat twin returns."""
        annotations = [annotation for node in self.nodes for annotation in node.flat().values()]
        return annotations[0] if len(annotations) == 1 else tuple[tuple(annotations)]  # type: ignore[misc]

    @property
    def visible(self) -> tuple[Node, ...]:
        """What a call returns."""
        return tuple(node for node in self.nodes if node.name not in self.hidden)

    def take(self, value: Any) -> Any:
        """What a kernel returned, as the flat twin returns it.

        Raises:
            MisfitError: it has another structure.
        """
        flat = [one for node, item in zip(self.nodes, self._items(value), strict=True) for one in node.take(item)]
        return flat[0] if len(flat) == 1 else tuple(flat)

    def _items(self, value: Any, *, is_loose: bool = False) -> tuple[Any, ...]:
        """What stands for each output; a container may also be given as a dict by place, where that is meant."""
        keys = tuple(node.name for node in self.nodes)
        if self.container is not None:
            found = self.container.read(value)
            if found is None and is_loose:
                by_place = self.container.read_loosely(value)
                found = None if by_place is None else tuple(by_place.get(key) for key in self.container.keys)
            if found is None:
                raise MisfitError("the result", self.container.label, self.container.describe(value))
            return found
        if not isinstance(value, dict) or set(value) != set(keys):
            raise MisfitError("the result", f"a dict with the keys {', '.join(map(repr, keys))}", describe(value))
        return tuple(value[key] for key in keys)

    def give(self, result: Any) -> Any:
        """What a call returns, from what the flat call returned."""
        names = [name for node in self.visible for name in node.flat()]
        values = dict(zip(names, result if len(names) != 1 else (result,), strict=True))
        found = [node.give(values.__getitem__) for node in self.visible]
        if not self.hidden and self.record is not None:
            return self.record.make(found)
        if not self.hidden and self.container is None:
            return {node.name: value for node, value in zip(self.nodes, found, strict=True)}
        return found[0] if self.hidden and len(found) == 1 else tuple(found)

    def pairs(self, value: Any) -> list[tuple[Node, Any]]:
        """Each output with what stands for it in a container like the one that a kernel returns."""
        return list(zip(self.nodes, self._items(value), strict=True))

    def put(self, values: Mapping[str, Any]) -> Any:
        """What a kernel returned, hidden outputs included, from values by flat name."""
        found = [node.give(values.__getitem__) for node in self.nodes]
        if self.container is None:
            return {node.name: value for node, value in zip(self.nodes, found, strict=True)}
        return self.container.make(found)

    def take_dims(self, dims: Any) -> Any:
        """What a vmap rule says of its output, as the flat twin says it: one number may stand for a whole container.

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
        one for key, place in zip(node.record.keys, node.places, strict=True) for one in _spread(place, found.get(key))
    ]
