"""Why an op may not write to its inputs: said before its kernel runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from custom_autograd.core.errors import GradientError, GradientUnavailable
from custom_autograd.core.messages import quote
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private import functions, transforms
from custom_autograd.values import tensors


def refuse_leaves(record: OpRecord, inputs: Mapping[str, Any]) -> None:
    """Raise before a leaf is written to; torch itself would raise only after the kernel ran."""
    for name, value in inputs.items():
        if any(map(functions.is_leaf_in_graph, tensors.tensors_in([value]))):
            raise GradientError(
                record.name,
                f"'{name}' is a leaf that requires a gradient, or a view of one, and the op writes to it",
                declared=record.declaration.location,
                do="call it under torch.no_grad(), or on a copy",
            )


def refuse_if_tracked(record: OpRecord, inputs: Mapping[str, Any]) -> None:
    """Raise where an input of a writing op without rules has a gradient or a tangent."""
    names = [name for name, value in inputs.items() if any(map(transforms.is_tracked, tensors.tensors_in([value])))]
    if not names:
        return
    raise GradientUnavailable(
        record.name,
        f"the op writes to {quote(a.name for a in record.declaration.schema.mutated_arguments)} and has no "
        f"backward, and {_requiring(names)}, which would be wrong",
        declared=record.declaration.location,
        do="register_backward, name the inputs that carry no gradient in non_differentiable=, or call it under "
        "torch.no_grad()",
    )


def _requiring(names: Sequence[str]) -> str:
    """Return "'x' requires a gradient", or "'x' and 'weight' require gradients"."""
    if len(names) == 1:
        return f"{quote(names)} requires a gradient"
    return f"{quote(names[:-1])} and {quote(names[-1:])} require gradients"
