"""Gradients by differentiating the reference: recomputed from the saved inputs, and differentiable again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientError
from custom_autograd.core.messages import format_message, show
from custom_autograd.core.schema import Schema
from custom_autograd.runtime.plan import Plan
from custom_autograd.runtime.tensors import is_wanted
from custom_autograd.torch_private.transforms import gradients_recorded, require_gradient

ByName = Mapping[str, Any]  # Any: tensors, lists of tensors and other values, by name


def reference_gradients(
    plan: Plan, reference: Callable[..., Any], needs: ByName, grads: ByName, values: ByName
) -> dict[str, Any]:
    """The gradients of some inputs, from a recomputation by the reference.

    Args:
        plan: of the op.
        reference: the op in differentiable PyTorch operations.
        needs: the wanted inputs; a list of bools for a list.
        grads: by result, the incoming gradient or None.
        values: all inputs of the op, by name.

    Returns:
        By wanted input: a tensor, None where the reference does not depend on it, or a list of those.
    """
    is_recording = torch.is_grad_enabled()
    with gradients_recorded():
        aliases = {name: _alias(values[name], name in needs and needs[name]) for name in values}
        results = call_reference(plan, reference, aliases)
        pairs = [pair for name, gradient in grads.items() for pair in _pairs(results.get(name), gradient)]
        wanted = [tensor for name, need in needs.items() for tensor in _wanted(aliases[name], need)]
        pairs = [(output, gradient) for output, gradient in pairs if output.requires_grad]
        if not pairs or not wanted:
            return {name: _spread(need, iter(())) for name, need in needs.items()}
        outputs, incoming = zip(*pairs, strict=True)
        found = torch.autograd.grad(outputs, wanted, incoming, create_graph=is_recording, allow_unused=True)
    remaining = iter(found)
    return {name: _spread(need, remaining) for name, need in needs.items()}


def call_reference(plan: Plan, reference: Callable[..., Any], values: ByName) -> dict[str, Any]:
    """Runs the reference on inputs by name; its results by output name (Any: what it returns).

    Raises:
        GradientError: it returns another number of results than the schema has outputs.
    """
    schema: Schema = plan.declaration.schema
    positional = [values[argument.name] for argument in schema.arguments if not argument.is_keyword_only]
    keywords = {argument.name: values[argument.name] for argument in schema.arguments if argument.is_keyword_only}
    result = reference(*positional, **keywords)
    results = tuple(result) if isinstance(result, tuple) else (result,)
    if len(results) != len(schema.outputs):
        raise GradientError(
            format_message(
                str(plan.declaration.name),
                "the reference returns the wrong number of results",
                expected=f"{len(schema.outputs)}: {', '.join(schema.output_names)}",
                found=f"{len(results)}: {show(type(result).__name__)}",
                declared=plan.declaration.location,
                do="return what the kernel returns, hidden outputs included",
            )
        )
    return dict(zip(schema.output_names, results, strict=True))


def _alias(value: Any, need: Any) -> Any:
    """A differentiable alias of an input: the same tensor given twice counts as two inputs."""
    if isinstance(value, (list, tuple)) and any(isinstance(item, Tensor) for item in value):
        needs = need if isinstance(need, (list, tuple)) else [need] * len(value)
        return [_alias(item, one) for item, one in zip(value, needs, strict=True)]
    if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
        return value
    alias = value.view_as(value)
    return require_gradient(alias) if need and not alias.requires_grad else alias


def _pairs(output: Any, gradient: Any) -> list[tuple[Tensor, Tensor]]:
    if isinstance(output, (list, tuple)) and gradient is not None:
        return [pair for one, its in zip(output, gradient, strict=True) for pair in _pairs(one, its)]
    return [(output, gradient)] if isinstance(output, Tensor) and isinstance(gradient, Tensor) else []


def _wanted(alias: Any, need: Any) -> list[Tensor]:
    if isinstance(need, (list, tuple)):
        return [item for item, one in zip(alias, need, strict=True) if one]
    return [alias] if need else []


def _spread(need: Any, found: Any) -> Any:
    """The next gradients of `found`, in the structure of the input."""
    if isinstance(need, (list, tuple)):
        return [next(found, None) if one else None for one in need]
    return next(found, None) if is_wanted(need) else None
