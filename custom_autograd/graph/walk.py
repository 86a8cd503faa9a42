"""Walks a recorded graph: from tensors to nodes, in the order in which a backward runs them."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.autograd.graph import Node as NodeType

from custom_autograd.core.errors import CustomAutogradError
from custom_autograd.core.messages import show
from custom_autograd.execution.node_facts import facts_of
from custom_autograd.torch_private.nodes import Node, next_nodes, node_of, sequence_number

Recorded = Tensor | GradientEdge | NodeType
"""A tensor, a gradient edge, or several of those."""


def op_of(node: Node) -> Any:  # Any: the class of ops is above this module
    """Return the custom op that recorded a node of the graph, or None if it is the node of something else.

    Args:
        node: a `grad_fn`.

    Returns:
        The op, as `custom_op` returned it.

    Example:
        >>> import torch
        >>> from custom_autograd import custom_op
        >>> from custom_autograd.graph import op_of
        >>> square = custom_op("op_of::square", lambda x: x * x, schema="(Tensor x) -> Tensor", reference=True)
        >>> op_of(square(torch.ones(2, requires_grad=True)).grad_fn) is square
        True
    """
    facts = facts_of(node)
    return None if facts is None else facts.record.handle


def roots_of(given: Recorded | Sequence[Recorded]) -> list[Node]:
    """Return the nodes at which a graph begins."""
    is_several = isinstance(given, (list, tuple)) and not isinstance(given, GradientEdge)
    values: Sequence[Any] = given if is_several else [given]  # type: ignore[assignment]  # it is one, as was asked
    nodes = [_root(value) for value in values]
    if not nodes:
        raise _refusal("there is no tensor to begin at", found=show(given))
    return list({id(node): node for node in nodes}.values())


def _root(value: Any) -> Node:  # Any: whatever a user passed
    if isinstance(value, GradientEdge):
        return value.node
    if isinstance(value, NodeType):
        return value
    if not isinstance(value, Tensor):
        raise _refusal("cannot inspect a value that has no graph", found=f"{type(value).__name__}: {show(value)}")
    node = node_of(value)
    if node is None:
        raise _without_graph(value)
    return node


def _without_graph(tensor: Tensor) -> CustomAutogradError:
    kind = f"a tensor of shape {tuple(tensor.shape)} without grad_fn"
    if tensor.requires_grad:
        return _refusal(
            "the tensor is a leaf: nothing recorded it",
            found=kind,
            do="pass a tensor that was computed from it",
        )
    return _refusal(
        "nothing recorded the tensor",
        found=f"{kind}, which does not require a gradient",
        do="compute it from tensors with requires_grad=True, outside of torch.no_grad(), and do not detach it",
    )


def _refusal(problem: str, *, found: str, do: str | None = None) -> CustomAutogradError:
    expected = "a tensor with grad_fn, a GradientEdge, a node, or a list of those"
    return CustomAutogradError("custom_autograd.inspect", problem, expected=expected, found=found, do=do)


def in_order_of_backward(roots: Sequence[Node]) -> list[Node]:
    """Return all nodes of a graph in the order in which a backward on one device runs them.

    A node runs when all nodes that pass gradients to it have run; of those, the one that was recorded last runs first.
    """
    nodes = _reachable(roots)
    waiting = dict.fromkeys(nodes, 0)
    for node in nodes.values():
        for follower, _ in next_nodes(node):
            waiting[id(follower)] += 1
    ready = [(-sequence_number(node), place, node) for place, node in enumerate(roots) if not waiting[id(node)]]
    heapq.heapify(ready)
    places = itertools.count(len(roots))
    found = []
    while ready:
        node = heapq.heappop(ready)[2]
        found.append(node)
        for follower, _ in next_nodes(node):
            waiting[id(follower)] -= 1
            if not waiting[id(follower)]:
                heapq.heappush(ready, (-sequence_number(follower), next(places), follower))
    return found


def _reachable(roots: Sequence[Node]) -> dict[int, Node]:
    """Return all nodes of a graph by their ids, which are valid as long as the nodes are held."""
    found = {id(node): node for node in roots}
    left = list(roots)
    while left:
        for follower, _ in next_nodes(left.pop()):
            if id(follower) not in found:
                found[id(follower)] = follower
                left.append(follower)
    return found
