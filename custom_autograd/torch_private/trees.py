"""Flattens nested containers as torch itself does.

`torch.utils._pytree` knows every container that torch knows, also those that users registered; there is no public one.
"""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree


def flatten_tree(tree: Any) -> tuple[list[Any], Any]:  # Any: any container, and torch's own TreeSpec
    """The leaves of a container, and its structure."""
    return _pytree.tree_flatten(tree)


def unflatten_tree(leaves: list[Any], structure: Any) -> Any:  # Any: as above
    """The inverse of `flatten_tree`."""
    return _pytree.tree_unflatten(leaves, structure)
