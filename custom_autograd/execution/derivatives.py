"""What the generated Function calls: reads what was saved, and runs the rules on it."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientUnavailable
from custom_autograd.core.lazy import Lazy
from custom_autograd.core.metadata import Metadata
from custom_autograd.execution.differentiated_reference import IS_IN_JVP
from custom_autograd.execution.plan import SAVED_VALUES, Plan
from custom_autograd.execution.vjp import Vjp
from custom_autograd.torch_private import functions, nodes, transforms
from custom_autograd.values.kernel_results import SINGLE, flatten_values, restore
from custom_autograd.values.tensors import filled, first_tensor, tensors_in

if TYPE_CHECKING:
    from custom_autograd.execution.drop_in import DropIn
    from custom_autograd.execution.jvp import Jvp

ByName = Mapping[str, Any]  # Any: tensors, lists of tensors, metadata and other values, by name


class Below(threading.local):
    """What a level of a call learns from the levels below it; reset before these run.

    Attributes:
        unknown: the hidden outputs whose tangents are zeros because nothing computes them.
    """

    unknown: tuple[str, ...] = ()


BEFORE_RULES = "before_rules"
"""The attribute of a node that is called once what it saved is there again, which may compute whole layers again."""


class Derivatives:
    """The derivatives of one op, in terms of the ctx of its Function (which torch gives no type: Any)."""

    def __init__(self, plan: Plan, *, is_checked: bool, is_strict: bool) -> None:
        self.plan = plan
        self.vjp = Vjp(plan, is_checked=is_checked, is_strict=is_strict)
        self.below = Below()
        self.drop_in, self._has_reverse = _drop_in_of(plan), plan.has_reverse
        self.saved_tensors, self.saved_values = plan.saved_tensors, plan.saved_values

    @Lazy
    def tangents(self) -> Jvp:
        """Return what computes tangents."""
        from custom_autograd.execution.jvp import Jvp  # loaded for the first tangent

        return Jvp(self.plan)

    def check_hidden(self, ctx: Any, saved: Collection[str]) -> None:
        """Refuse reverse mode over a hidden output whose tangent, computed below, is unknown."""
        if not self.below.unknown or not any(ctx.needs_input_grad):
            return
        unknown = [name for name in self.below.unknown if name in saved]
        if unknown:
            self.tangents.refuse_reverse(unknown)

    def backward(self, ctx: Any, needs: ByName, grads: ByName) -> Mapping[str, Any]:
        """Return the gradients by input, from the incoming gradients by result."""
        if first_tensor(grads.values()) is None:
            return dict.fromkeys(needs)
        # Where nothing was saved nothing is freed, and a second backward is right: torch refuses to look all the same.
        saved = ctx.saved_tensors if self.saves_tensors(ctx) else ()
        if hasattr(ctx, BEFORE_RULES):
            ctx.before_rules()
        return self._gradients(ctx, saved, needs, grads)

    def saves_tensors(self, ctx: Any) -> bool:
        """Return True if a node saved any tensor."""
        if self.drop_in is None:
            return bool(self.saved_tensors)
        kept = getattr(ctx, SAVED_VALUES, None)
        return kept is not None and kept.has_tensors  # without one, the rule itself reads torch's ctx

    def _gradients(self, ctx: Any, saved: Sequence[Any], needs: ByName, grads: ByName) -> Mapping[str, Any]:
        if self.drop_in is not None:
            metadata = self.known_of(ctx) if hasattr(ctx, SAVED_VALUES) else {}
            return self.drop_in.gradients(ctx, saved, needs, grads, metadata)
        return self._gradients_by_name(ctx, self._values(ctx, saved), needs, grads)

    def _gradients_by_name(self, ctx: Any, values: ByName, needs: ByName, grads: ByName) -> Mapping[str, Any]:
        if not self._has_reverse:
            raise self._no_backward()
        return self.vjp(needs, grads, values, self.known_of(ctx))

    def _values(self, ctx: Any, saved: Sequence[Any]) -> dict[str, Any]:
        values = restore(saved, ctx.saved_lengths) if hasattr(ctx, "saved_lengths") else saved
        found = dict(zip(self.saved_tensors, values, strict=True))
        found.update({name: getattr(ctx, f"kept_{name}") for name in self.saved_values})
        return found

    def jvp(self, ctx: Any, tangents: ByName) -> dict[str, Any]:
        """Return the tangents by result, from the tangents by input."""
        values, results = vars(ctx).pop("forward")
        saved, fixed = vars(ctx).pop("forward_saved", ((), ()))
        sources = tensors_in([*values.values(), *tangents.values(), *saved])
        is_recorded = torch.is_grad_enabled() and transforms.are_recorded(sources)
        if fixed:
            results = {name: _without(value, fixed) for name, value in results.items()}
        names = self.tangents.results
        with torch.enable_grad(), transforms.forward_mode_enabled(True), IS_IN_JVP.set(True):
            held = map(transforms.primal_of, (*values.values(), *results.values(), *saved))
            leaves, lengths = flatten_values([*tangents.values(), *held])

            def run(leaves: list[Any]) -> list[Any]:
                rest = iter(restore(leaves, lengths))
                own, primals = dict(zip(tangents, rest, strict=False)), dict(zip(values, rest, strict=False))
                made = dict(zip(results, rest, strict=False))
                for name in self.saved_values:
                    primals[name] = getattr(ctx, f"kept_{name}")
                gradients = partial(self._gradients_by_name, ctx, primals)
                if self.drop_in is not None:
                    gradients = partial(self._gradients, ctx, list(rest))
                found, unknown = self.tangents(own, primals, made, ctx.known, gradients, is_recorded=is_recorded)
                self.below.unknown = unknown
                return flatten_values([*map(filled, map(found.get, names), map(made.__getitem__, names))])[0]

            of_results = dict(zip(results, lengths[len(tangents) + len(values) :], strict=False))
            found = restore(transforms.apart_from_jvp(run, leaves), [*map(of_results.__getitem__, names)])
            self.check_hidden(ctx, self.saved_tensors)
            if not is_recorded:
                found = [*map(transforms.without_history, found)]
            return self.tangents.memory.separate(dict(zip(names, found, strict=True)), tangents)

    def known_of(self, ctx: Any) -> ByName:
        """Return metadata by name: what forward kept, or the graph's metadata of strided tensors in an eager call."""
        kept: ByName | None = getattr(ctx, "known", None)
        if kept is not None:
            return kept
        schema = self.plan.declaration.schema
        layout = getattr(ctx, "layout", None)
        are_tensors = [one.holds_tensors and (None if "?" in one.type else True) for one in schema.arguments]
        if layout is not None:  # it is an input itself, before the elements of the lists
            lengths = [1 if length == SINGLE else length for length in layout.inputs]
            pairs = zip(are_tensors, lengths, strict=True)
            are_tensors = [False, *[one for one, length in pairs for _ in range(length)]]
        needed = [one and Metadata(*one[:3], torch.strided, one[3]) for one in nodes.known_inputs(ctx, are_tensors)]
        outputs = [output_metadata(ctx, i) for i in range(functions.count_outputs(ctx))]
        if layout is not None:
            needed, outputs = restore(needed[1:], layout.inputs), restore(outputs, layout.outputs)
        known = dict(zip(schema.argument_names, needed, strict=True))
        return {**known, **dict(zip(schema.output_names, outputs, strict=True))}

    def _no_backward(self) -> GradientUnavailable:
        declaration = self.plan.declaration
        return declaration.error(
            GradientUnavailable,
            "a gradient is requested, but no backward is registered",
            do=f"register one with register_backward, register_grad or register_autograd, {self.plan.how_to_derive}",
        )


def _drop_in_of(plan: Plan) -> DropIn | None:
    if plan.drop_in is None:
        return None
    from custom_autograd.execution.drop_in import DropIn  # loaded for rules in the style of torch.library

    return DropIn(plan, plan.drop_in)


def output_metadata(ctx: Any, index: int) -> Metadata:
    """Return the graph's metadata of a strided output."""
    shape, dtype, device = functions.known_output(ctx, index)
    return Metadata(shape, dtype, device, torch.strided, dtype)


def _without(value: Any, fixed: tuple[Tensor, ...]) -> Any:
    """Return a result with None in place of what has no tangent."""
    if isinstance(value, (list, tuple)):
        return [_without(item, fixed) for item in value]
    return None if any(value is one for one in fixed) else value
