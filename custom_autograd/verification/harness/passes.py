"""One forward and one backward of a target: the same inputs, random numbers and incoming gradients, as often as asked.

function = function_of(target, sample)
plain = gradients(function, function.inputs, u)        what everything else is compared with
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from custom_autograd.torch_private import functions
from custom_autograd.values.random_state import kept_random_state
from custom_autograd.verification.harness.base import NothingToCheckError
from custom_autograd.verification.harness.differentiable import TensorsFunction, signed_like
from custom_autograd.verification.harness.targets import Target

BUILT_IN = ("aten", "prim", "prims")


@dataclass(frozen=True, slots=True)
class Forward:
    """Outcome of one call.

    Args:
        inputs: the leaves it was called on, each of which requires grad.
        outputs: the results that carry a gradient.
        keeps_randomness: whether the default generators are put back after each backward.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    keeps_randomness: bool = True

    def backward(
        self, cotangents: Sequence[Tensor], *, retain_graph: bool = False, create_graph: bool = False
    ) -> tuple[Tensor, ...]:
        """Return the gradient of each input; zeros where there is no connection."""
        with kept_random_state(is_enabled=self.keeps_randomness):
            grads = torch.autograd.grad(
                self.outputs,
                self.inputs,
                [u.clone() for u in cotangents],
                retain_graph=retain_graph or create_graph,
                create_graph=create_graph,
                allow_unused=True,
            )
        return tuple(torch.zeros_like(x) if g is None else g for x, g in zip(self.inputs, grads, strict=True))


def forward(function: TensorsFunction, inputs: Sequence[Tensor], *, keeps_randomness: bool = True) -> Forward:
    """Call once, on copies of the inputs.

    Args:
        function: what is called.
        inputs: its arguments.
        keeps_randomness: False leaves the default generators alone, as calls in several threads must.

    Raises:
        NothingToCheckError: no output carries a gradient.
    """
    leaves = tuple(value.detach().clone().requires_grad_() for value in inputs)
    with kept_random_state(is_enabled=keeps_randomness):
        outputs = tuple(output for output in function(*leaves) if output.requires_grad)
    if not outputs:
        raise NothingToCheckError("no output carries a gradient")
    return Forward(leaves, outputs, keeps_randomness)


def gradients(function: TensorsFunction, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return one forward and one backward."""
    return forward(function, inputs).backward(cotangents)


def cotangents_of(function: TensorsFunction, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return an incoming gradient of both signs for each output that carries one."""
    return signed_like(forward(function, inputs).outputs)


def repeatable_gradients(
    function: TensorsFunction, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return `gradients` of a target of which two calls in a row agree to the last bit.

    Raises:
        NothingToCheckError: they do not, so that nothing can be compared.
    """
    first = [grad.clone() for grad in gradients(function, inputs, cotangents)]
    if not all(is_same(a, b) for a, b in zip(first, gradients(function, inputs, cotangents), strict=True)):
        raise NothingToCheckError("two calls in a row with equal seeds give different gradients")
    return tuple(first)


def varied(function: TensorsFunction, inputs: Sequence[Tensor], step: int) -> tuple[Tensor, ...]:
    """Return the inputs a little smaller, so that signs, order and bounds of 1 stay.

    As they are if the op refuses those.
    """
    smaller = tuple(value.detach() * (1 - 0.03 * step) for value in inputs)
    try:
        forward(function, smaller)
    except Exception:  # noqa: BLE001 - these numbers are not the sample's: an op may have its reasons to refuse them
        return tuple(value.detach() for value in inputs)
    return smaller


def is_same(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors have the same values to the last bit; nan equals nan."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = one.detach(), other.detach()
    return bool(((one == other) | ((one != one) & (other != other))).all())


def own_node(outputs: Sequence[Tensor]) -> Any:  # Any: torch types the nodes of Functions as none
    """Return the node of the target, if the outputs come from one Function.

    None for a composition, and for a node of PyTorch's own; native nodes have the Function that they stand for.
    """
    nodes = {id(output.grad_fn): output.grad_fn for output in outputs}
    node, *others = nodes.values()
    if others or node is None:
        return None
    before = [row for row, _ in node.next_functions if row is not None]
    is_first = all(row.name().endswith("AccumulateGrad") or row.name() == "CloneBackward0" for row in before)
    return node if is_first and functions.has_function(node) else None


def why_not_own_op(target: Target) -> str | None:
    """Return why a target is not an op registered with the dispatcher, or None if it is one."""
    if target.overload is None:
        return "it is not an op of the dispatcher"
    if target.overload.namespace in BUILT_IN:
        return "it is one of torch's own ops"
    return None
