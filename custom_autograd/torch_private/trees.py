"""Flattens nested containers as torch itself does.

`torch.utils._pytree` handles every container that torch does, also those that users registered; there is no public one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.utils import _pytree

from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.torch_private.compiler import constant_in_graphs


def flatten_tree(tree: Any) -> tuple[list[Any], Any]:  # Any: any container, and torch's own TreeSpec
    """Return the leaves of a container, and its structure."""
    return _pytree.tree_flatten(tree)


def unflatten_tree(leaves: list[Any], structure: Any) -> Any:  # Any: as above
    """Return the inverse of `flatten_tree`."""
    return _pytree.tree_unflatten(leaves, structure)


@dataclass(frozen=True, slots=True)
class NodeType:
    """A class that was registered with `torch.utils._pytree.register_pytree_node`.

    Attributes:
        is_named: it has a `serialized_type_name`, without which PyTorch does not write its contexts down.
    """

    cls: type
    flatten: Callable[[Any], tuple[Iterable[Any], Any]]
    unflatten: Callable[[Iterable[Any], Any], Any]
    to_dumpable: Callable[[Any], Any] | None
    from_dumpable: Callable[[Any], Any] | None
    is_named: bool

    def dump(self, value: Any) -> tuple[list[Any], Any]:
        """Return the children of a value, and its context as what can be written down."""
        found, context = self.flatten(value)
        return list(found), context if self.to_dumpable is None else self.to_dumpable(context)

    def load(self, values: list[Any], context: Any) -> Any:
        """Return the inverse of `dump`."""
        return self.unflatten(values, context if self.from_dumpable is None else self.from_dumpable(context))


@constant_in_graphs
def find_node_type(cls: type) -> NodeType | None:
    """Return how a registered class is taken apart, or None; containers of Python and torch count as not registered."""
    row = _pytree.SUPPORTED_NODES.get(cls)
    if row is None or cls.__module__.partition(".")[0] in OWN:
        return None
    text = _pytree.SUPPORTED_SERIALIZED_TYPES.get(cls)
    dump, load = (None, None) if text is None else (text.to_dumpable_context, text.from_dumpable_context)
    is_named = text is not None and text.serialized_type_name != _pytree.NO_SERIALIZED_TYPE_NAME_FOUND
    return NodeType(cls, row.flatten_fn, row.unflatten_fn, dump, load, is_named)


OWN = ("builtins", "collections", "torch")
"""The modules whose containers are lists, tuples and dicts, whatever else they are."""
