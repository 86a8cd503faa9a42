"""The substitute for ctx in the backward of a native node, where the general backward needs one.

A native node holds what was saved and kept, and no ctx. Its quick backward takes those as arguments. For everything
else a `NativeContext` is made, which has the attributes that the backward of the generated Function reads.

- `Function._forward_cls`: of a ctx, its Function; compiled autograd finds the backward by it.
- `Node._input_metadata`: shapes, dtypes and devices of the outputs, which the graph keeps anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.autograd.function import Function


class NativeContext:
    """The ctx of one backward of a native node.

    Attributes:
        saved_tensors: in the order in which the Function saves them.
        needs_input_grad: by input of the op, whether the graph leads to one that requires a gradient.
        next_functions: as of the node.
        _forward_cls: the Function, by which compiled autograd finds the backward.
    """

    def __init__(self, function: type[Function], node: Any, saved: Sequence[Tensor | None], needs: Any) -> None:
        self._forward_cls = function
        self._node = node
        self.saved_tensors = saved
        self.needs_input_grad = needs
        self.next_functions = node.next_functions
        self._input_metadata = node._input_metadata

    @property
    def op(self) -> Any:  # Any: its class is above
        """Return the op that recorded the node."""
        return self._forward_cls._backward_cls.op  # type: ignore[attr-defined]  # see autograd/node_facts.py

    def name(self) -> str:
        """Return the name of the node."""
        name: str = self._node.name()
        return name


def running_context() -> NativeContext:
    """Return a ctx for the native node whose backward runs in this thread."""
    assert _find is not None  # native code runs
    return _find()


def find_with(find: Callable[[], NativeContext]) -> None:
    """Set how the ctx of the running node is found: by the native library that was loaded."""
    global _find
    _find = find


class Running:
    """The ctx of the native node whose backward runs in this thread; asked for an attribute, it makes one."""

    def __getattr__(self, name: str) -> Any:  # Any: as on ctx
        return getattr(running_context(), name)


_find: Callable[[], NativeContext] | None = None
