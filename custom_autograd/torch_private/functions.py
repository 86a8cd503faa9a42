"""What a generated autograd.Function needs beyond the public class, and the substitute for the ctx of a native node.

- `autograd.function._SingleLevelFunction`: `Function.apply` routes through a higher-order op under functorch, which
  gets `jacfwd(jacfwd)` wrong and ignores a custom backward inside `torch.compile`; its base class does not. Up to torch
  2.13 the base class's `apply` was enough. From 2.14 on `apply` is C++ and decides by the class, so that only a class
  that is not a `Function` records one node: see NOTE [one node, whatever transforms are active].
- `ctx._forward_cls`: the Function of a node; compiled autograd finds the backward by it.
- `Function._backward_cls`, `Function._compiled_autograd_key`: the class of the nodes, and its key in compiled autograd.
- `Tensor._base`, `Tensor._is_view`: what a view is a view of.
- `_C._AutoDispatchBelowAutograd`: makes an alias that is not noted as a view.
- `Tensor._version`: how often a tensor was written to.
- `Tensor._indices`, `Tensor._values`: the public methods raise for a sparse tensor that is not coalesced.
- `_C._dispatch_tls_is_dispatch_key_excluded`: whether autograd notes views in this thread now.
- `_C.DisableTorchFunction`: reads the memory of a tensor whatever its class, or a mode, makes of functions.
- `_C._any_requires_grad`: checks all arguments at once, looking into lists.
- `Node._input_metadata`: shapes, dtypes and devices that the graph keeps anyway.
- `ctx.to_save`, `ctx.materialize_grads`: what `save_for_backward` and `set_materialize_grads` set, without a call.
- `ctx._is_pure_view`: what a `setup_context` sets so that the view that an op returns may be written to in place.
- `ctx.maybe_clear_saved_tensors`: frees what a node saved before its backward ends, as the nodes of AOTAutograd do.

A native node holds what was saved and kept, and no ctx. Its quick backward takes those as arguments. For everything
else a `NativeContext` is made, which has the attributes that the backward of the generated Function reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, _SingleLevelFunction

from custom_autograd.torch_private.transforms import is_transforming, single_level_enabled

# What `save_for_backward` sets: generated code writes `ctx.to_save`, and reads `ctx.saved_tensors`.
SAVED = "to_save"
MATERIALIZES = "materialize_grads"
without_torch_function = torch._C.DisableTorchFunction


def copy_view_flag(source: Any, ctx: Any) -> None:  # Any: a ctx, and torch's own
    """Copy what a `setup_context` said on another ctx: that the output is a view, which may be written to in place."""
    if getattr(source, "_is_pure_view", False):
        ctx._is_pure_view = True


def free_saved(ctx: Any) -> None:  # Any: as above
    """Free what a node saved, as the engine does after its backward: not if the graph is retained."""
    ctx.maybe_clear_saved_tensors()


def direct_apply(function: type[Function]) -> Callable[..., Any]:  # Any: apply takes whatever the op takes
    """Return the `apply` that records one node of a Function at the level in progress."""
    apply, under_transforms = applies(function, forward=function.forward, setup_context=function.setup_context)
    return lambda *args: under_transforms(*args) if is_transforming() else apply(*args)


def applies(function: type[Function], **members: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return what records one node of `function` at the level in progress: without transforms, and under them."""
    single = _single_level(function, members)
    apply: Callable[..., Any] = single.apply

    def apply_at_this_level(*args: Any) -> Any:
        with single_level_enabled():
            return apply(*args)

    return apply, apply_at_this_level


def call_when_compiled(function: Any, note: Callable[[], None]) -> None:  # Any: a Function, or as `_single_level`
    """Call `note` each time that compiled autograd asks a node of a Function for its key, before it compiles."""

    def key(ctx: Any) -> Any:  # Any: a ctx; a tuple of numbers
        note()
        return Function._compiled_autograd_key(ctx)

    function._compiled_autograd_key = staticmethod(key)


def has_function(node: object) -> bool:
    """Return True if a node of the graph is that of a Function, and not one of PyTorch's own."""
    return hasattr(node, "_forward_cls")


def is_node_of(node: object, function: type[Function]) -> bool:
    """Return True if a node of the graph is one of a Function."""
    return isinstance(node, function._backward_cls)


# NOTE [one node, whatever transforms are active]
# Under a functorch transform, torch 2.14 and up send every subclass of Function to `custom_function_call`, also through
# `super(Function, cls).apply`. A direct subclass of _SingleLevelFunction records one node, as our Autograd kernel must.
# Its nodes are those of the Function: they share `_backward_cls`, which calls the backward and the jvp of the Function.
def _single_level(function: type[Function], members: Mapping[str, Any]) -> Any:  # Any: the class is private
    """Return a class that is not a Function, with a forward of its own and the same nodes."""
    own = {
        "__module__": function.__module__,
        "_compiled_autograd_key": staticmethod(Function._compiled_autograd_key),
        **{name: staticmethod(member) for name, member in members.items()},
    }
    metaclass: Any = type(function)
    single = metaclass(function.__name__, (_SingleLevelFunction,), own)
    single._backward_cls = function._backward_cls
    return single


def known_output(ctx: Any, index: int) -> tuple[torch.Size, torch.dtype, torch.device]:  # Any: as above
    """Return the metadata that the graph has of an output of a node."""
    metadata = ctx._input_metadata[index]
    return torch.Size(metadata.shape), metadata.dtype, metadata.device


def count_outputs(ctx: Any) -> int:  # Any: as above
    """Return how many outputs a node has."""
    return len(ctx._input_metadata)


any_requires_grad = torch._C._any_requires_grad
"""Return True if a tensor among the arguments requires a gradient; looks into lists, which must hold no None."""


def is_view(tensor: Tensor) -> bool:
    """Return True if a tensor is a view of another one for autograd."""
    return tensor._is_view()


def alias_of(tensor: Tensor) -> Tensor:
    """Return another tensor with the same memory, that autograd does not track."""
    with torch._C._AutoDispatchBelowAutograd():
        alias: Tensor = torch.ops.aten.alias.default(tensor)
    return alias


def is_parameter(tensor: Tensor) -> bool:
    """Return True if a tensor is a parameter of a module, or a view of one."""
    base = tensor._base if tensor._is_view() else tensor
    return isinstance(base, torch.nn.Parameter)


def are_views_noted() -> bool:
    """Return True if autograd notes what is a view of what: not below `__torch_dispatch__` or in inference mode."""
    return not torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.ADInplaceOrView)


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor was written to."""
    return tensor._version


# In a kernel, `to_dense` counts as three writes to such a tensor: its version does not tell whether it was written to.
COMPRESSED = (torch.sparse_csr, torch.sparse_bsr, torch.sparse_csc, torch.sparse_bsc)


def sparse_parts(tensor: Tensor) -> list[Tensor]:
    """Return the strided tensors that a sparse tensor consists of; none for a tensor of another layout."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in COMPRESSED[:2]:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in COMPRESSED[2:]:
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []


def is_leaf_in_graph(tensor: Tensor) -> bool:
    """Return True if a tensor is a leaf that requires a gradient, or a view of one: autograd forbids writing to it."""
    base = tensor._base if tensor._is_view() else tensor
    return base is not None and base.is_leaf and base.requires_grad


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
        return self._forward_cls._backward_cls.op  # type: ignore[attr-defined]  # see execution/node_facts.py

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
