"""To the values of a jagged tensor and back, differentiable any number of times, in reverse and in forward mode.

PyTorch's own `values()` has neither a second derivative nor forward mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.autograd.function import Function

from custom_autograd.torch_private.functions import direct_apply
from custom_autograd.torch_private.nested import NestedTensor, Raggedness, make_nested, raggedness_of, values_of


class _Values(Function):
    @staticmethod
    def forward(nested: NestedTensor) -> Tensor:
        return values_of(nested)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[NestedTensor], output: Tensor) -> None:  # Any: torch gives ctx no type
        del output
        ctx.set_materialize_grads(False)  # torch's zeros would not be jagged
        ctx.raggedness = raggedness_of(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Tensor | None:
        return None if grads[0] is None else nested_of(grads[0], ctx.raggedness)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        del ctx
        return to_values(tangents[0])


class _Nested(Function):
    @staticmethod
    def forward(values: Tensor, raggedness: Raggedness) -> Tensor:
        return make_nested(values, raggedness)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Raggedness], output: Tensor) -> None:  # Any: as above
        del output
        ctx.set_materialize_grads(False)
        ctx.raggedness = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, None]:
        del ctx
        return None if grads[0] is None else to_values(grads[0]), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return nested_of(tangents[0], ctx.raggedness)


_to_values: Callable[..., Tensor] = direct_apply(_Values)
_to_nested: Callable[..., Tensor] = direct_apply(_Nested)


def to_values(nested: NestedTensor) -> Tensor:
    """Return the values of a jagged tensor."""
    return _to_values(nested)


def nested_of(values: Tensor, raggedness: Raggedness) -> Tensor:
    """Return the jagged tensor of some values."""
    return _to_nested(values, raggedness)
