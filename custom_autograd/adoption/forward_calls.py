"""Calls `forward` of an autograd.Function, and returns its outputs and the values that it keeps on ctx.

run_forward        with the given arguments
AbstractForward    with fake tensors in their place: leaves that are not tensors follow from shapes and numbers
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor

from custom_autograd.core.signatures import read_signature
from custom_autograd.execution.context import Context, attributes_of
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.schema.samples import PLAIN
from custom_autograd.torch_private.dispatch import is_any_autocast_enabled
from custom_autograd.torch_private.fakes import fakes_alone
from custom_autograd.torch_private.trees import flatten_tree, unflatten_tree

Function: TypeAlias = type[torch.autograd.Function]


class FunctionContext(Context):
    """The ctx of a Function in an op."""

    custom_autograd_dirty: tuple[Tensor, ...] = ()

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Record the arguments that forward writes to."""
        self.custom_autograd_dirty = tensors


def values_on(context: FunctionContext) -> dict[str, Any]:  # Any: whatever the Function keeps
    """Return all values that the backward may read."""
    return {"saved_tensors": context.saved_tensors, **attributes_of(context)}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a forward.

    Attributes:
        arguments: in the order of forward.
        outputs: its results.
        is_tuple: True if it returned a tuple or a list.
        context: its ctx.
        leaves: values on ctx, with containers flattened.
        structure: of each attribute of ctx, (name, treespec or None for a leaf, number of leaves).
    """

    arguments: Sequence[Any]  # Any: the Function takes, returns and keeps anything
    outputs: tuple[Any, ...]
    is_tuple: bool
    context: FunctionContext
    leaves: list[Any]
    structure: list[tuple[str, Any, int]]

    def paths(self) -> list[str]:
        """Return the name of each leaf: `saved_tensors[0]`, `ctx.shape`."""
        found = []
        for name, structure, count in self.structure:
            prefix = name if name == "saved_tensors" else f"ctx.{name}"
            found += [prefix] if structure is None else [f"{prefix}[{index}]" for index in range(count)]
        return found

    def with_leaves(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """Return the attributes of ctx with other leaves; containers are new ones, which a backward may write to."""
        found, rest = {}, iter(leaves)
        for name, structure, count in self.structure:
            own = list(itertools.islice(rest, count))
            found[name] = _copied(own[0]) if structure is None else unflatten_tree(own, structure)
        return found


def flatten_kept(kept: Mapping[str, Any]) -> tuple[list[Any], list[tuple[str, Any, int]]]:
    """Return the leaves of a ctx, and the structure of its attributes; a container without tensors is one leaf."""
    leaves, rows = [], []
    for name, value in kept.items():
        is_whole = isinstance(value, Tensor) or type(value) in WHOLE
        inside, structure = ([value], None) if is_whole else flatten_tree(value)
        is_whole = is_whole or (name != "saved_tensors" and not any(isinstance(one, Tensor) for one in inside))
        leaves += [value] if is_whole else inside
        rows.append((name, None, 1) if is_whole else (name, structure, len(inside)))
    return leaves, rows


def _copied(leaf: Any) -> Any:  # Any: as kept on ctx
    """Return a leaf, or a copy of a container without tensors."""
    return leaf if isinstance(leaf, Tensor) or type(leaf) in WHOLE else unflatten_tree(*flatten_tree(leaf))


WHOLE = frozenset({*PLAIN, torch.Size})
"""Classes of values that are not containers, or do not contain tensors."""


def has_setup_context(function: Function) -> bool:
    """Return True if the Function has a `setup_context`, so that forward does not take ctx."""
    return function.setup_context is not torch.autograd.Function.setup_context


def parameters_of(function: Function) -> list[inspect.Parameter]:
    """Return the parameters of `apply`: the positional ones of forward, without ctx."""
    parameters = list(read_signature(function.forward).parameters.values())
    rest = parameters if has_setup_context(function) else parameters[1:]
    return [one for one in rest if one.kind not in (one.KEYWORD_ONLY, one.VAR_KEYWORD)]


def with_defaults(function: Function, *args: Any, **kwargs: Any) -> list[Any]:  # Any: as the Function takes them
    """Return arguments in the order of forward, with its defaults; raise TypeError if they do not fit."""
    bound = inspect.Signature(parameters_of(function)).bind(*args, **kwargs)
    bound.apply_defaults()
    return list(bound.args)


@torch.no_grad()
def run_forward(function: Function, arguments: Sequence[Any]) -> Call:  # Any: as there
    """Call forward as `apply` does if every tensor requires a gradient; autocast is off, as in an op."""
    context = FunctionContext(tuple([_can_need_grad(value) for value in arguments]))
    forward: Callable[..., Any] = function.forward
    device = next((value.device.type for value in arguments if isinstance(value, Tensor)), "cpu")
    with torch.autocast(device, enabled=False) if is_any_autocast_enabled() else nullcontext():
        if has_setup_context(function):
            found = forward(*arguments)
            function.setup_context(context, tuple(arguments), found)
        else:
            found = forward(context, *arguments)
    is_tuple = isinstance(found, (tuple, list))
    leaves, structure = flatten_kept(values_on(context))
    return Call(arguments, tuple(found) if is_tuple else (found,), is_tuple, context, leaves, structure)


def _can_need_grad(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


class AbstractForward:
    """Computes the leaves on ctx that follow from shapes, dtypes and numbers; runs forward once for each of these."""

    LONGEST = 256

    def __init__(self, function: Function) -> None:
        self._function = function
        self._known: dict[object, list[Any]] = {}

    def leaves(self, arguments: Sequence[Any]) -> list[Any]:
        """Return the leaves on ctx after a call with arguments as forward takes them, or `Metadata` for tensors."""
        key = tuple(map(_key, arguments))
        try:
            found = self._known.get(key)
        except TypeError:  # a symbol is not hashable, and belongs to the graph that is traced now
            return self.run(arguments).leaves
        if found is None:
            if len(self._known) == self.LONGEST:
                self._known.clear()
            with fakes_alone():
                leaves = self.run(arguments).leaves
            found = self._known[key] = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return found

    def run(self, arguments: Sequence[Any]) -> Call:
        """Call forward with empty tensors, which are fake ones if a fake mode is active."""
        return run_forward(self._function, [_empty(value) for value in arguments])


def is_metadata(value: object) -> bool:
    """Return True for a tensor, or the metadata of one."""
    return hasattr(value, "stride") and hasattr(value, "dtype")


def _empty(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)([_empty(item) for item in value])
    if isinstance(value, torch.Size) or not is_metadata(value):
        return value
    if value.layout is not torch.strided:
        return torch.empty(value.shape, dtype=value.dtype, device=value.device, layout=value.layout)
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _key(value: Any) -> object:
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(_key, value))
    if is_metadata(value):
        strides = value.stride() if value.layout is torch.strided else ()
        return tuple(value.shape), tuple(strides), value.dtype, value.device, value.layout
    return type(value), value
