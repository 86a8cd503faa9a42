"""Refuse tensors that are given for numbers and carry a derivative, which would be lost.

The dispatcher makes a number of a tensor without dimensions. PyTorch's own operators refuse such a tensor if it
requires a gradient, and so does an op, in the calls that reach the dispatcher: a direct call takes only numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from custom_autograd.calls.source import Source
from custom_autograd.core.argument_types import find_row
from custom_autograd.core.errors import KernelError
from custom_autograd.core.schema import Schema
from custom_autograd.registration.declaration import Declaration
from custom_autograd.torch_private import transforms
from custom_autograd.torch_private.compiler import constant_in_graphs, raise_text

HELPERS = {"Tensor": Tensor, "isinstance": isinstance, "type": type, "list": list, "tuple": tuple}
"""What the source of the refusals calls, besides `refuse_tracked`."""


def write_refusals(source: Source, schema: Schema) -> None:
    """Write the refusal for every argument that is a number, or a list of numbers that can have derivatives."""
    for argument in schema.arguments:
        if argument.to_dispatcher is not None:
            continue
        element, bracket, _ = argument.type.removesuffix("?").partition("[")
        row = find_row(element)
        if row is None:
            continue
        if row.is_number and not bracket:
            with source.block(f"if $isinstance({argument.name}, $Tensor)"):
                source.line(f"$refuse_tracked({argument.name!r}, {argument.name})")
        elif row.lists_take_tensors:
            items = f"{argument.name} if $type({argument.name}) in ($list, $tuple) else ()"
            with source.block(f"for $item in {items}"), source.block("if $isinstance($item, $Tensor)"):
                source.line(f"$refuse_tracked({argument.name!r}, $item)")


def refuse_tracked(declaration: Declaration) -> Callable[[str, Tensor], None]:
    """Return what raises if a tensor that is given for a number carries a derivative.

    Args:
        declaration: of the op.
    """

    @constant_in_graphs  # Dynamo cannot trace how a message is laid out
    def refusal(name: str, what: str) -> str:
        error = declaration.origin().error(
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
