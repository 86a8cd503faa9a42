"""Nodes of a graph: what they are called, what they saved, their edges, and the backward pass that runs them.

- `Node._saved_<name>`, `Node._raw_saved_<name>`: the saved values of a built-in node; only tensors have the second one.
- `ctx._raw_saved_tensors`, `SavedTensor.unpack` (from torch 2.13 on): reads one saved tensor of a Function by itself.
- `Node._sequence_nr`: the engine runs the node that was recorded last first.
- `ctx._forward_cls`: the Function of a node; native nodes have it, too.
- `Function._backward_cls`: the class of the nodes.
- `_C._functorch.is_functorch_wrapped_tensor`, `_C._functorch.get_unwrapped`: inside `torch.vmap` the graph is below.
- The texts of two errors of `SavedVariable::unpack`, which have no classes of their own.

- `Function._backward_cls.apply`: what the engine calls; torch's own looks up `backward` and `vjp` of the class first.
- `Node._input_metadata`, `ctx.next_functions`: shapes, dtypes and devices that the graph keeps anyway.
- `AccumulateGrad.variable`: the leaf, whose `grad_dtype` (from torch 2.13 on) says which gradients it accepts.
- `Variable._execution_engine.is_checkpoint_valid`: whether the backward in progress is a plain `.backward()`.
- `_C._will_engine_execute_node`: whether the backward in progress runs a node; torch has it for multi-grad hooks.

- `_C._current_graph_task_id`: its number, or -1 outside a backward; inner backwards have numbers of their own.
- `Variable._execution_engine.queue_callback`: calls a function when it ends without an error; a function that it has
  not called it drops with the pass.
- `_C._get_dispatch_mode`: whether the operations of this thread are recorded in a graph (`make_fx`).
- `_dynamo.compiled_autograd.in_compiled_autograd_region`: whether a compiled backward runs, which drops what is queued
  by a rule that Dynamo could not trace.
"""

from __future__ import annotations

import enum
import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from inspect import CO_VARARGS
from types import FrameType
from typing import Any

import torch
from torch import _C, Tensor
from torch.autograd import Variable
from torch.autograd.function import BackwardCFunction, Function

from custom_autograd.torch_private.compiler import is_tracing
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
    """Return attributes of nodes that hold saved tensors, or an `Unread` for each that cannot be read."""
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


is_whole_backward = torch.autograd.Variable._execution_engine.is_checkpoint_valid
"""Return True if the backward in progress computes the gradients of all leaves: `.backward()` without `inputs`."""

Known = tuple[torch.Size, torch.dtype, torch.device, torch.dtype | None]
"""Shape, dtype and device of an input, and the dtype of its gradient: None if any is accepted."""


def run_in_backward(function: type[Function], backward: Callable[..., Any]) -> None:
    """Make eager backward passes run something else than a Function's own backward."""
    # Compiled autograd, which traces what it runs, takes the Function's own.
    function._backward_cls.apply = backward  # type: ignore[attr-defined]  # torch's metaclass makes it


def needed_gradients(ctx: Any, *, is_write: bool = False) -> tuple[bool, ...]:  # Any: torch types no ctx
    """Return `ctx.needs_input_grad` without the inputs whose gradients the backward in progress leaves out."""
    # `torch.autograd.grad` and `backward(inputs=...)` compute the gradients of some inputs only. Dynamo, which traces
    # backwards under compiled autograd, cannot ask the engine: there compilers drop what is not used.
    needs: tuple[bool, ...] = ctx.needs_input_grad
    if torch.compiler.is_dynamo_compiling() or is_whole_backward() or (is_write and not _is_executed(ctx)):
        return needs
    edges = _edges_by_input(ctx, [None] * len(needs))
    if edges is None:
        return needs
    return tuple([edge is not None and _is_executed(edge[0]) for edge in edges])


@contextmanager
def needs_set(ctx: Any, needs: tuple[bool, ...]) -> Iterator[None]:  # Any: as above
    """Set `ctx.needs_input_grad` while the context is open."""
    before = ctx.needs_input_grad
    ctx.needs_input_grad = needs
    try:
        yield
    finally:
        ctx.needs_input_grad = before


def _is_executed(node: Any) -> bool:  # Any: torch gives it no public type
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # a leaf whose gradient torch.autograd.grad returns; torch does not say so of those
        return True


def known_inputs(ctx: Any, are_tensors: Sequence[bool | None]) -> list[Known | None]:  # Any: torch types no ctx
    """Return the graph's metadata of each input of a node that requires a gradient, and None for the others.

    Args:
        ctx: that of the node.
        are_tensors: by input of the node, whether it is a tensor; None for one that may be None.

    Raises:
        RuntimeError: inputs cannot be told apart, see below.
    """
    edges = _edges_by_input(ctx, are_tensors)
    if edges is None:
        raise RuntimeError(
            "an input is a view, made under torch.no_grad(), of a tensor that requires a gradient: it reports that it "
            "requires one, but is not part of the graph; pass it detached"
        )
    return [None if edge is None else _known(*edge) for edge in edges]


# NOTE [views made under no_grad]
# A view of a tensor that requires a gradient, made under `no_grad`, reports that it requires one, and has no node: its
# edge is None, as that of a tensor that requires none. Inputs that are not tensors have no edge at all.
def _edges_by_input(
    ctx: Any, are_tensors: Sequence[bool | None]
) -> list[Any] | None:  # Any: as above; an edge of a graph
    """Return the edge of each input that is part of the graph, None for the others; None if they are not known."""
    needs: tuple[bool, ...] = ctx.needs_input_grad
    edges = ctx.next_functions
    found = [edge for edge in edges if edge[0] is not None]
    have_edges = [*needs]
    if len(found) != sum(needs):
        found = [edge if edge[0] is not None else None for edge in edges]
        for kinds in ((True,), (True, None)):
            have_edges = [need or one in kinds for need, one in zip(needs, are_tensors, strict=True)]
            if len(edges) == sum(have_edges):
                break
        else:
            return None
    remaining = iter(found)
    return [next(remaining) if has_edge else None for has_edge in have_edges]


def _known(node: Any, position: int) -> Known:  # Any: torch gives it no public type
    metadata = node._input_metadata[position]
    leaf = None if torch.compiler.is_dynamo_compiling() else getattr(node, "variable", None)  # Dynamo cannot trace it
    return torch.Size(metadata.shape), metadata.dtype, metadata.device, getattr(leaf, "grad_dtype", metadata.dtype)


NONE = -1
"""The number of a backward where there is none."""

current_task = torch._C._current_graph_task_id
queue_callback = Variable._execution_engine.queue_callback


def is_recorded() -> bool:
    """Return True if what runs now is recorded in a graph, which later runs in its place."""
    if torch.compiler.is_compiling() or is_tracing():
        return True
    compiled_autograd = sys.modules.get("torch._dynamo.compiled_autograd")  # another thread may be importing it
    is_in_region = getattr(compiled_autograd, "in_compiled_autograd_region", False)
    return is_in_region or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
