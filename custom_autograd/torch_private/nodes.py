"""Nodes of a recorded graph, seen from outside: what they are called, when they run, and what they saved.

- `Node._saved_<name>`, `Node._raw_saved_<name>`: the saved values of a built-in node; only tensors have the second one.
- `ctx._raw_saved_tensors`, `SavedTensor.unpack` (from torch 2.13 on): reads one saved tensor of a Function by itself.
- `Node._sequence_nr`: the engine runs the node that was recorded last first.
- `ctx._forward_cls`: the Function of a node; native nodes have it, too.
- `Function._backward_cls`: the class of the nodes.
- `_C._functorch.is_functorch_wrapped_tensor`, `_C._functorch.get_unwrapped`: inside `torch.vmap` the graph is below.
- The texts of two errors of `SavedVariable::unpack`, which have no classes of their own.
"""

from __future__ import annotations

import enum
import gc
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from inspect import CO_VARARGS
from types import FrameType
from typing import Any

from torch import _C, Tensor
from torch.autograd.function import BackwardCFunction, Function

from custom_autograd.torch_private.dispatch import OpOverload

SAVED = "_saved_"
RAW = "_raw_saved_"

Node = Any
"""A node of the graph (Any: built-in nodes have classes without a common base)."""


class Unread(enum.Enum):
    """Why a saved tensor cannot be read."""

    FREED = "freed"
    PACKED = "packed by hooks"
    MODIFIED = "modified in place"
    UNKNOWN = "not readable"


def set_members_of_nodes(function: type[Function], members: Mapping[str, Any]) -> None:  # Any: attributes of a class
    """Set attributes of the class of a Function's nodes; `__name__` is what `grad_fn.name()` returns."""
    for name, value in members.items():
        setattr(class_of_nodes(function), name, value)


def class_of_function_nodes(node: Node) -> type | None:
    """Return the class of the nodes of a node's Function, or None if the node is one of PyTorch's own."""
    function: Any = getattr(node, "_forward_cls", None)
    return None if function is None else class_of_nodes(function)


def is_of_function(node: Node) -> bool:
    """Return True if a node runs the backward of a Function, in Python or C++, rather than one of PyTorch's own."""
    return isinstance(node, BackwardCFunction) or type(node).__name__ == "CppFunction"


def class_of_nodes(function: type[Function]) -> type:
    """Return the class of a Function's nodes."""
    found: type = function._backward_cls
    return found


def node_of(tensor: Tensor) -> Node | None:
    """Return the node that recorded a tensor, or None; inside transforms, that of the innermost level that has one."""
    while tensor.grad_fn is None and _C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _C._functorch.get_unwrapped(tensor)
    return tensor.grad_fn


def next_nodes(node: Node) -> list[tuple[Node, int]]:
    """Return the nodes to which a node passes gradients, each with the number of its output."""
    return [edge for edge in node.next_functions if edge[0] is not None]


def sequence_number(node: Node) -> int:
    """Return the number by which the engine chooses between nodes: the highest runs first."""
    number: int = node._sequence_nr()
    return number


def names_of_saved(node: Node) -> dict[str, bool]:
    """Return the `<name>` of each attribute `_saved_<name>` of a built-in node, and whether it holds tensors."""
    members = vars(type(node))
    names = [name.removeprefix(SAVED) for name in members if name.startswith(SAVED)]
    return {name: RAW + name in members for name in names}


# NOTE [saved tensors are read without their hooks]
# An unpack hook may copy from another device, or, with activation checkpointing, run a part of the model again. From
# Python it cannot be seen whether a saved tensor has one. So saved tensors are read in a thread whose profile function
# raises where torch enters a Python function in order to unpack: the hook does not run. A profiler of the caller's
# thread is not disturbed. The garbage collector is off meanwhile: a finalizer would be taken for a hook. A hook that is
# not written in Python cannot be stopped.
def read_saved(requests: Sequence[tuple[Node, str]]) -> list[Any]:  # Any: tensors, tuples and other values
    """Return attributes of nodes that hold saved tensors, or an `Unread` for each that cannot be read.

    Args:
        requests: pairs of a node and the name of an attribute. `saved_tensors` gives a list with an `Unread` in place
            of each tensor that cannot be read, as far as torch can tell them apart.
    """
    if not requests:
        return []
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(_read_all, requests).result()


def _read_all(requests: Iterable[tuple[Node, str]]) -> list[Any]:
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        return [_read_attribute(node, name) for node, name in requests]
    finally:
        sys.setprofile(None)
        if was_collecting:
            gc.enable()


def _read_attribute(node: Node, name: str) -> Any:
    found = _read_one(getattr, node, name)
    return _one_by_one(node, found) if isinstance(found, Unread) and name == "saved_tensors" else found


def _one_by_one(node: Node, reason: Unread) -> list[Any] | Unread:
    """Return the saved tensors of a Function that cannot be read at once, or the reason if none can be read."""
    if reason is Unread.FREED:
        return reason
    if hasattr(node, "_unpack_saved"):  # a native node
        return [_read_one(node._unpack_saved, index) for index in range(node._count_saved())]
    raw = node._raw_saved_tensors
    if not all(hasattr(one, "unpack") for one in raw):
        return [reason] * len(raw)
    found = [_read_one(one.unpack) for one in raw]
    return [reason if one is Unread.UNKNOWN else one for one in found]  # an output cannot be read by itself


def _read_one(function: Callable[..., Any], *args: Any) -> Any:
    found = _read(function, args)
    if isinstance(found, _HookEntered):
        return Unread.PACKED
    return _reason(str(found)) if isinstance(found, RuntimeError) else found


def _read(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Return what a function returns or raises; it calls nothing else, which would be taken for a hook."""
    sys.setprofile(_refuse_hooks)  # Python drops a profile function that has raised
    try:
        return function(*args)
    except (_HookEntered, RuntimeError) as error:
        return error


class _HookEntered(Exception):  # noqa: N818  # it leads out of torch, and reaches nobody
    """Torch is about to run a hook."""


def _refuse_hooks(frame: FrameType, event: str, _: object) -> None:
    caller = frame.f_back
    is_direct = event == "call" and caller is not None and caller.f_code is _read.__code__
    if is_direct and not _is_dispatch(frame):
        raise _HookEntered


def _is_dispatch(frame: FrameType) -> bool:
    """Return True if torch detaches a tensor of a subclass, which is a part of unpacking it: it passes an overload."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & CO_VARARGS)
    given = [frame.f_locals[name] for name in code.co_varnames[:count]]
    return any(isinstance(one, OpOverload) for value in given for one in (value if type(value) is tuple else (value,)))


def _reason(text: str) -> Unread:
    if "a second time" in text:
        return Unread.FREED
    return Unread.MODIFIED if "modified by an inplace operation" in text else Unread.UNKNOWN
