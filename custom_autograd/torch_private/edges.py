"""What a node in the graph runs in a backward pass, and what its edges know of all its inputs at once.

- `Function._backward_cls.apply`: what the engine calls; torch's own looks up `backward` and `vjp` of the class first.
- `Node._input_metadata`, `ctx.next_functions`: shapes, dtypes and devices that the graph keeps anyway.
- `AccumulateGrad.variable`: the leaf, whose `grad_dtype` (from torch 2.13 on) says which gradients it accepts.
- `Variable._execution_engine.is_checkpoint_valid`: whether the backward in progress is a plain `.backward()`.
- `_C._will_engine_execute_node`: whether the backward in progress runs a node; torch has it for multi-grad hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.function import Function

is_whole_backward = torch.autograd.Variable._execution_engine.is_checkpoint_valid
"""Return True if the backward in progress computes the gradients of all leaves: `.backward()` without `inputs`."""

Known = tuple[torch.Size, torch.dtype, torch.device, torch.dtype | None]
"""Shape, dtype and device of an input, and the dtype of its gradient: None if any is accepted."""


def run_in_backward(function: type[Function], backward: Callable[..., Any]) -> None:
    """Make eager backward passes run something else than a Function's own backward.

    Compiled autograd, which traces what it runs, takes the Function's own.

    Args:
        function: whose nodes those are.
        backward: (ctx, *grads) -> gradients (Any: tensors and None).
    """
    function._backward_cls.apply = backward  # type: ignore[attr-defined]  # torch's metaclass makes it


def needed_gradients(ctx: Any, *, is_write: bool = False) -> tuple[bool, ...]:  # Any: torch types no ctx
    """Return `ctx.needs_input_grad` without the inputs whose gradients the backward in progress leaves out.

    `torch.autograd.grad` and `backward(inputs=...)` compute the gradients of some inputs only. Dynamo, which traces
    backwards under compiled autograd, cannot ask the engine: there compilers drop what is not used.

    Args:
        ctx: of the node.
        is_write: the node may be that of a write to a view, which another node runs, with edges of its own.
    """
    needs: tuple[bool, ...] = ctx.needs_input_grad
    if torch.compiler.is_dynamo_compiling() or is_whole_backward() or (is_write and not _is_executed(ctx)):
        return needs
    edges = iter([node for node, _ in ctx.next_functions if node is not None])
    return tuple([need and _is_executed(next(edges)) for need in needs])


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


def known_inputs(ctx: Any) -> list[Known | None]:  # Any: torch types no ctx
    """Return the graph's metadata of each input of a node that requires a gradient, and None for the others."""
    edges = iter([edge for edge in ctx.next_functions if edge[0] is not None])
    return [_known(*next(edges)) if need else None for need in ctx.needs_input_grad]


def _known(node: Any, position: int) -> Known:  # Any: torch gives it no public type
    metadata = node._input_metadata[position]
    leaf = None if torch.compiler.is_dynamo_compiling() else getattr(node, "variable", None)  # Dynamo cannot trace it
    return torch.Size(metadata.shape), metadata.dtype, metadata.device, getattr(leaf, "grad_dtype", metadata.dtype)
