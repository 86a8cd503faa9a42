"""What a generated autograd.Function needs beyond the public class.

- `autograd.function._SingleLevelFunction`: `Function.apply` routes through a higher-order op under functorch, which
  gets `jacfwd(jacfwd)` wrong and ignores a custom backward inside `torch.compile`; its base class does not.
- `Tensor._base`, `Tensor._is_view`: what a view is a view of.
- `Tensor._version`: how often a tensor was written to.
- `_C._any_requires_grad`: asks all arguments at once, looking into lists.
- `Node._input_metadata`, `ctx.next_functions`: shapes, dtypes and devices that the graph keeps anyway.
- `ctx.to_save`, `ctx.materialize_grads`: what `save_for_backward` and `set_materialize_grads` set, without a call.
- `Function._backward_cls.apply`: what the engine calls; torch's own looks up `backward` and `vjp` of the class first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function

from custom_autograd.torch_private.transforms import is_transforming, single_level_enabled

SAVED = "to_save"
MATERIALIZES = "materialize_grads"


def direct_apply(function: type[Function]) -> Callable[..., Any]:  # Any: apply takes whatever the op takes
    """The `apply` that records one node at the level in progress, without the Python layer of `Function.apply`."""
    apply: Callable[..., Any] = super(Function, function).apply  # type: ignore[misc]  # C++ defines it, stubs do not

    def apply_at_this_level(*args: Any) -> Any:
        if not is_transforming():
            return apply(*args)
        with single_level_enabled():
            return apply(*args)

    return apply_at_this_level


def make_node(
    function: type[Function], forward: Callable[..., Any], backward: Callable[..., Any] | None
) -> Callable[..., Any]:
    """The `apply` of a Function like another one, but with a forward that takes ctx: that makes calls cheaper.

    Args:
        function: whose name and backward the nodes have.
        forward: (ctx, *args) -> results.
        backward: what eager backward passes run in place of the function's own backward, or None. Compiled autograd,
            which traces what it runs, takes the function's own.
    """
    members = {"forward": staticmethod(forward), "backward": staticmethod(function.backward)}
    metaclass: Any = type(function)  # Any: torch gives it no public name
    node = metaclass(function.__name__, (Function,), {**members, "__module__": function.__module__})
    if backward is not None:
        node._backward_cls.apply = backward
    apply: Callable[..., Any] = super(Function, node).apply
    return apply


def known_input(ctx: Any, index: int) -> tuple[torch.Size, torch.dtype, torch.device]:  # Any: torch types no ctx
    """What the graph knows of an input that requires a gradient.

    Args:
        ctx: of a node in the graph.
        index: of the input among the arguments of `apply`.
    """
    edges = [edge for edge in ctx.next_functions if edge[0] is not None]  # one per input that requires a gradient
    node, position = edges[sum(ctx.needs_input_grad[:index])]
    return _known(node._input_metadata[position])


def known_output(ctx: Any, index: int) -> tuple[torch.Size, torch.dtype, torch.device]:  # Any: as above
    """What the graph knows of an output of a node."""
    return _known(ctx._input_metadata[index])


def count_outputs(ctx: Any) -> int:  # Any: as above
    """How many outputs a node has."""
    return len(ctx._input_metadata)


def _known(metadata: Any) -> tuple[torch.Size, torch.dtype, torch.device]:  # Any: torch gives it no public type
    return torch.Size(metadata.shape), metadata.dtype, metadata.device


def any_requires_grad(*values: Any) -> bool:  # Any: whatever an op takes
    """Whether a tensor among the arguments requires a gradient (looks into lists)."""
    found: bool = torch._C._any_requires_grad(*values)
    return found


def is_view(tensor: Tensor) -> bool:
    """Whether autograd knows a tensor to be a view of another one."""
    return tensor._is_view()


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written to."""
    return tensor._version


def is_leaf_in_graph(tensor: Tensor) -> bool:
    """Whether a tensor is a leaf that requires a gradient, or a view of one: autograd forbids writing to it."""
    base = tensor._base if tensor._is_view() else tensor
    return base is not None and base.is_leaf and base.requires_grad
