"""Second derivatives of what a setup_context computes from outputs: they raise.

NOTE [what is computed from outputs]
An output has no history yet while setup_context runs. What is computed from it cannot be given one later: the node
would own a tensor whose history leads back to the node, and the graph would never be freed. So outputs are marked
meanwhile, as leaves that require a gradient, and what leads to a mark gets a history that raises. Under a transform of
`torch.func` the levels below follow the output, and nothing is marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from custom_autograd.autograd.once_differentiable import forbid_second_derivative
from custom_autograd.torch_private import transforms
from custom_autograd.torch_private.nodes import Node, next_nodes
from custom_autograd.values.tensors import tensors_in


def mark(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Mark the outputs that may have a gradient, and return them."""
    marked = [one for one in outputs if (one.is_floating_point() or one.is_complex()) and not one.requires_grad]
    for one in marked:
        one.requires_grad_()
    return marked


def unmark(marked: Sequence[Tensor]) -> None:
    """Take the marks off again."""
    for one in marked:
        one.requires_grad_(False)


def forbid_following(
    kept: Sequence[Tensor | None], inputs: Any, outputs: Any, message: str
) -> tuple[Tensor | None, ...]:
    """Return what a setup_context kept; what was computed from marked outputs raises if it is differentiated.

    Args:
        kept: the tensors.
        inputs: of the call (Any: tensors, lists of tensors and other values, here and below).
        outputs: of the call.
        message: of the error.
    """
    given, results = tensors_in(inputs), tensors_in([outputs])
    are_followed = all(one is None or one.grad_fn is None or _is_among(one, given) for one in kept)
    if are_followed or transforms.is_transforming():
        return tuple(kept)
    ends = {id(one.grad_fn) for one in given}
    with transforms.gradients_recorded():
        dependencies = [transforms.primal_of(one) for one in given if one.requires_grad]
        return tuple(
            [
                forbid_second_derivative(transforms.primal_of(one), message, dependencies)
                if one is not None and not _is_among(one, given) and _leads_to(one.grad_fn, results, ends)
                else one
                for one in kept
            ]
        )


def _leads_to(node: Node | None, results: Sequence[Tensor], ends: set[int]) -> bool:
    """Return True if a history leads to a marked output, without a look behind the inputs."""
    ahead = [] if node is None else [node]
    seen = {id(one): one for one in ahead}
    for one in ahead:
        if _is_among(getattr(one, "variable", None), results):
            return True
        following = [] if id(one) in ends else [after for after, _ in next_nodes(one) if id(after) not in seen]
        seen.update({id(after): after for after in following})
        ahead += following
    return False


def _is_among(value: object, tensors: Sequence[Tensor]) -> bool:
    return any(value is one for one in tensors)
