"""The backward of an autograd.Function as a rule that is bound by name: on a ctx that holds what forward kept."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from custom_autograd.adoption.function_plans import COMPUTED, CONSTANT, NUMBER, Plan
from custom_autograd.adoption.recorded_calls import FunctionContext
from custom_autograd.core.errors import GradientError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import show
from custom_autograd.schema.schema import Schema
from custom_autograd.values.tensors import is_wanted, materialize


class FunctionBackward:
    """The backward of a Function as a rule that is bound by name.

    Attributes:
        signature: names what the backward reads.
        is_once: it is marked `once_differentiable`.
    """

    def __init__(self, plan: Plan, schema: Schema) -> None:
        own = _without_once(plan.function.backward)
        self.is_once = own is not None
        self._backward: Callable[..., Any] = own or plan.function.backward
        self._plan = plan
        self._location = location_of(plan.function.backward)
        self._grads = [f"grad_{name}" if name in schema.visible_results else None for name in plan.outputs]
        self._differentiable = frozenset(one.name for one in schema.differentiable_arguments)
        tensors = schema.tensor_names
        self._is_computed = any(one.source == COMPUTED for one in plan.kept)
        self._tensors = [name for name in plan.names if name in tensors]
        named = [one.value for one in plan.kept if one.source not in (COMPUTED, CONSTANT)]
        numbers = [name for name in plan.names if name not in tensors] if self._is_computed else []
        names = [*(name for name in self._grads if name), *named, *numbers, "needs", "meta"]
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in dict.fromkeys(names)]
        self.signature = inspect.Signature(parameters)

    def gradients(self, *values: Any) -> dict[str, Any]:  # Any: as named
        """Run the Function's backward on a ctx that holds what forward kept."""
        given = dict(zip(self.signature.parameters, values, strict=True))
        needs, meta = given["needs"], given["meta"]
        context = FunctionContext(tuple([self._is_needed(name, needs) for name in self._plan.names]))
        context.saved_tensors, attributes = self._kept(given, meta)
        vars(context).update(attributes)
        grads = [
            self._grad(name, grad, given, meta) for name, grad in zip(self._plan.outputs, self._grads, strict=True)
        ]
        result = self._backward(context, *grads)
        return self._by_name(list(result) if isinstance(result, (tuple, list)) else [result], meta)

    def _is_needed(self, name: str, needs: Any) -> bool:
        return name in self._differentiable and is_wanted(getattr(needs, name))

    def _kept(self, given: Any, meta: Any) -> tuple[Any, dict[str, Any]]:
        plan = self._plan
        computed: list[Any] = []
        if self._is_computed:
            assert plan.abstract is not None
            known = [getattr(meta, name) if name in self._tensors else given[name] for name in plan.names]
            computed = plan.abstract.leaves(known)
        leaves = []
        for position, one in enumerate(plan.kept):
            if one.source == COMPUTED:
                leaves.append(computed[position])
            else:
                value = one.value if one.source == CONSTANT else given[one.value]
                leaves.append(type(plan.call.leaves[position])(value.tolist()) if one.source == NUMBER else value)
        attributes = plan.call.with_leaves(leaves)
        return attributes.pop("saved_tensors"), attributes

    def _grad(self, output: str, grad: str | None, given: Any, meta: Any) -> Any:
        """Return the gradient of an output; one that has none gets what autograd passes for it."""
        if grad is not None:
            return given[grad]
        known = getattr(meta, output, None) if self._plan.call.context.materializes else None
        return materialize(None, known, None)

    def _by_name(self, found: list[Any], meta: Any) -> dict[str, Any]:
        """Return the gradients by argument, as lenient as the engine."""
        names = self._plan.names
        while len(found) > len(names) and found[-1] is None:
            found.pop()
        found += [None] * (len(names) - len(found))
        gradients = {}
        for name, gradient in zip(names, found[: len(names)], strict=True):
            if name in self._differentiable:
                gradients[name] = _like(gradient, getattr(meta, name))
            elif gradient is not None:
                found.append(gradient)
        if len(found) > len(names):
            raise self._wrong(found[len(names) :])
        return gradients

    def _wrong(self, surplus: list[Any]) -> GradientError:
        return GradientError(
            self._plan.origin.op,
            "the backward returns gradients for more arguments than have one",
            expected=f"{len(self._plan.names)}, None for what is not differentiable",
            found=show(surplus[0]),
            rule=self._location,
            declared=self._plan.origin.declared,
            do="return None in its place",
        )


def _like(gradient: Any, known: Any) -> Any:
    """Return a gradient as the engine accumulates it: summed over what was broadcast, in the dtype of the input."""
    if not isinstance(gradient, Tensor) or known is None or isinstance(known, list):
        return gradient
    gradient = gradient if gradient.shape == known.shape else gradient.sum_to_size(known.shape)
    return gradient if gradient.dtype == known.dtype else gradient.to(known.dtype)


def _without_once(backward: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the backward below `once_differentiable`, or None if it is not marked so."""
    code = torch.autograd.function.once_differentiable(lambda ctx: ctx).__code__
    return getattr(backward, "__wrapped__", None) if getattr(backward, "__code__", None) is code else None
