"""Refuse values that the dispatcher takes for something else, in the calls that reach it: a direct call takes no such.

a tensor for a number       its derivative would be lost; PyTorch's own operators refuse it if it requires a gradient
None for a tensor           the dispatcher has undefined tensors, so that the kernel would receive None
a subclass of a list        the dispatcher reads a plain list, so that what the class looks up otherwise would be lost
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from custom_autograd.containers.named_fields import advise_plain, describe
from custom_autograd.core.errors import KernelError
from custom_autograd.execution.source import Source, named
from custom_autograd.registration.declaration import Declaration
from custom_autograd.schema.schema import Argument, Schema
from custom_autograd.schema.types import find_row
from custom_autograd.torch_private import transforms
from custom_autograd.torch_private.compiler import constant_in_graphs, raise_text


def helpers(declaration: Declaration) -> dict[str, Any]:
    """Return what the source of the refusals names (Any: functions and classes)."""
    return {
        **named(Tensor, list, tuple, isinstance, type),
        "refuse_tracked": refuse_tracked(declaration),
        "refuse_none": refuse_none(declaration),
        "refuse_subclass": refuse_subclass(declaration),
    }


def write_refusals(source: Source, schema: Schema, *, is_traced: bool) -> None:
    """Write the refusals of every argument that has any; while Dynamo traces, the fake refuses None."""
    for argument in schema.arguments:
        if argument.to_dispatcher is None and not (is_traced and argument.type == "Tensor"):
            _write_refusal(source, argument)


def _write_refusal(source: Source, argument: Argument) -> None:
    name = argument.name
    element, bracket, _ = argument.type.removesuffix("?").partition("[")
    row = find_row(element)
    if argument.type == "Tensor":
        with source.block(f"if {name} is None"):
            source.line(f"$refuse_none({name!r})")
    elif argument.is_tensor_list:
        with source.block(f"if $type({name}) not in ($list, $tuple)"):
            source.line(f"$refuse_subclass({name!r}, {name})")
    elif row is not None and row.is_number and not bracket:
        with source.block(f"if $isinstance({name}, $Tensor)"):
            source.line(f"$refuse_tracked({name!r}, {name})")
    elif row is not None and row.lists_take_tensors:
        items = f"{name} if $type({name}) in ($list, $tuple) else ()"
        with source.block(f"for $item in {items}"), source.block("if $isinstance($item, $Tensor)"):
            source.line(f"$refuse_tracked({name!r}, $item)")


def refuse_tracked(declaration: Declaration) -> Callable[[str, Tensor], None]:
    """Return what raises if a tensor that is given for a number carries a derivative."""

    @constant_in_graphs  # Dynamo cannot trace how a message is laid out
    def refusal(name: str, what: str) -> str:
        error = declaration.error(
            KernelError,
            f"argument '{name}' is a number, and the tensor given for it {what}: that would be lost",
            do=f"declare '{name}: Tensor', or pass {name}.item()",
        )
        return str(error)

    def refuse(name: str, value: Tensor) -> None:
        if value.requires_grad and torch.is_grad_enabled():
            raise_text(KernelError, refusal(name, "requires a gradient"))
        if torch.compiler.is_dynamo_compiling():
            return
        if transforms.unwrapped(value) is not value:
            raise_text(KernelError, refusal(name, "belongs to a torch.func transform"))
        if transforms.is_tracked(value):
            raise_text(KernelError, refusal(name, "has a tangent"))

    return refuse


def refuse_none(declaration: Declaration) -> Callable[[str], None]:
    """Return what raises, because None is given for a tensor."""
    refusal = _wrong_type(declaration, "Tensor")

    def refuse(name: str) -> None:
        do = f"pass a tensor such as torch.zeros(()), or declare '{name}: Tensor | None'"
        raise_text(KernelError, refusal(name, "None", do))

    return refuse


def refuse_subclass(declaration: Declaration) -> Callable[[str, Any], None]:
    """Return what raises if a value is of a subclass of list or tuple (Any: whatever a call gives)."""
    refusal = _wrong_type(declaration, "list[Tensor]")

    def refuse(name: str, value: Any) -> None:
        do = advise_plain(value)
        if do is not None:
            raise_text(KernelError, refusal(name, describe(value), do))

    return refuse


def _wrong_type(declaration: Declaration, expected: str) -> Callable[[str, str, str], str]:
    @constant_in_graphs  # Dynamo cannot trace how a message is laid out
    def refusal(name: str, found: str, do: str) -> str:
        problem = f"argument '{name}' has the wrong type"
        return str(declaration.error(KernelError, problem, expected=expected, found=found, do=do))

    return refusal
