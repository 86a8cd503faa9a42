"""A backward that must not be differentiated again: its result raises when a second derivative is really asked for.

Grad mode says nothing about that (`torch.func.grad` always has it on), and an error tied to the incoming gradients
alone misses `create_graph=True` with a constant one. So the result is tied to everything the backward depended on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientUnavailable
from custom_autograd.values.tensors import tensors_in


class OnceDifferentiable(torch.autograd.Function):
    """The identity of its first argument, whose backward raises."""

    generate_vmap_rule = True  # jacrev and vmap(grad) run the backward, and so this, under vmap

    @staticmethod
    def forward(gradient: Tensor, message: str, *dependencies: Tensor) -> Tensor:
        """Copy the gradient."""
        del message, dependencies
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # Any: torch gives ctx no type
        """Keep the message."""
        del output
        ctx.message = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> NoReturn:
        """Refuse the second derivative."""
        raise GradientUnavailable(ctx.message)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> NoReturn:
        """Refuse the derivative in forward mode."""
        raise GradientUnavailable(ctx.message)


def forbid_second_derivative(gradient: Any, message: str, dependencies: Sequence[Any]) -> Any:  # Any: with lists
    """Return a gradient that raises when it is differentiated.

    Args:
        gradient: a tensor, None, or a list of those.
        message: of the error.
        dependencies: what the gradient was computed from; may hold anything.
    """
    if not torch.is_grad_enabled():
        return gradient
    if isinstance(gradient, list):
        return [forbid_second_derivative(one, message, dependencies) for one in gradient]
    if gradient is None:
        return None
    tensors = [d for d in tensors_in(dependencies) if d.is_floating_point() or d.is_complex()]
    apply: Callable[..., Tensor] = OnceDifferentiable.apply
    return apply(gradient.detach(), message, *tensors)
