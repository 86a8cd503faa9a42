"""Recorders: what runs a kernel and records a node in calls that need no dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from torch.autograd.function import Function

from custom_autograd.torch_private import functions

Kernel = Callable[..., Any]
"""A kernel, or what records its calls (Any: takes and returns what the schema says)."""


class Recorders:
    """Makes the recorders of one op."""

    def __init__(
        self,
        function: type[Function],
        quick: Callable[..., Any] | None,  # Any: ctx and gradients
        members: Mapping[str, Any],  # Any: attributes of nodes
        make_node: Callable[[Kernel], Kernel] | None,
        spread: Callable[[Kernel], Kernel] | None,
        around: Callable[[Kernel], Kernel],
        keep_python: Callable[[], None],
    ) -> None:
        self._function, self._quick, self._members = function, quick, members
        self._make_node, self._spread, self._around = make_node, spread, around
        self._keep_python = keep_python

    def __call__(self, function: Kernel) -> Kernel:
        """Return what runs a kernel and records a node, for one kind of call. It takes the schema's arguments."""
        assert self._make_node is not None  # the op is recording
        apply = self._around(functions.recording(self._function, self._nodes, self._make_node(function)))
        return apply if self._spread is None else self._spread(apply)

    @cached_property
    def _nodes(self) -> type[Any]:  # Any: torch gives nodes no type
        """Return the class of the nodes of all calls."""
        return functions.make_nodes(self._function, self._quick, self._members, when_compiled=self._keep_python)
