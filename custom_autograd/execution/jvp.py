"""Forward mode: the jvp rule, or the vjp of the vjp.

NOTE [the vjp of the vjp]
A backward is linear in its incoming gradient u: g = J'u. The derivative of <g, t> with respect to u is J t, the tangent
of the output. So an op whose backward is differentiable has forward mode for free. Where the backward is not
differentiable g does not depend on u as autograd sees it, and we raise: a tangent is never silently zero.
Zeros that a rule makes for an input without influence raise, too: they cannot be told from a gradient that was computed
outside autograd and is zero at this point only, as `(grad * x).detach()` is at x = 0, whose second derivative is not.
A rule that returns None says that the gradient is zero everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import is_not
from typing import Any, NoReturn

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientError, GradientUnavailable, Origin
from custom_autograd.core.messages import quote
from custom_autograd.core.metadata import is_same_shape, metadata_of
from custom_autograd.execution.gradients import sum_to_shape
from custom_autograd.execution.plan import Plan
from custom_autograd.execution.tangents import TangentMemory, TangentReader, flat
from custom_autograd.registration.rule_types import NamedRule, Rule
from custom_autograd.torch_private.saved_tensors import without_hooks
from custom_autograd.torch_private.storages import may_share
from custom_autograd.torch_private.transforms import require_gradient, without_history
from custom_autograd.values.kernel_results import flatten_values, restore
from custom_autograd.values.tensors import any_floating, filled, plain
from custom_autograd.values.user_code import Named, add_note, noted

ByName = Mapping[str, Any]  # Any: tensors, lists of tensors, metadata and other values, by name
Gradients = Callable[[ByName, ByName], Mapping[str, Any]]  # (needs, grads) -> gradients by input name


class Jvp:
    """Computes tangents by name. Made once per plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.results = [result.name for result in plan.declaration.schema.differentiable_results]
        self.visible = list(plan.declaration.schema.visible_results)
        self.hidden = plan.declaration.schema.hidden_results
        self.asked = {f"tangent_{a.name}": a.name for a in plan.declaration.schema.differentiable_arguments}
        self._derivable = frozenset(name for name in (*self.results, *self.hidden) if self._is_derivable(name))
        self._has_reverse = plan.has_reverse
        self._once = plan.once_differentiable
        self._reader, self.memory = TangentReader(plan), TangentMemory(plan.declaration)

    def __call__(
        self,
        tangents: ByName,
        values: ByName,
        results: ByName,
        metadata: ByName,
        gradients: Gradients,
        *,
        is_recorded: bool,
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the tangent of each differentiable result, and the hidden outputs whose tangents are not known.

        Returns:
            By result: a tensor, None if it has no tangent, or a list of those; and names.
        """
        found, asked = dict[str, Any](), self.results
        if self.plan.jvp is not None:
            found = self._from_rule(self.plan.jvp, tangents, values, metadata)
            asked = [name for name in self.hidden if name not in found]
        derivable = list(filter(self._derivable.__contains__, asked))
        if derivable or self.plan.jvp is None:
            found.update(self.derive(tangents, derivable, results, gradients, is_recorded=is_recorded))
        if len(derivable) == len(asked):
            return found, ()
        # Of what is not derived, integers have no tangent, and neither has None.
        unknown = [name for name in asked if name not in derivable and any_floating([results[name]])]
        return found, tuple(unknown)

    def read_one(self, found: Any, like: Tensor, given: Sequence[Tensor | None]) -> Tensor:
        """Return the one tangent that the rule returned in a call that records nothing."""
        is_plain = type(found) is Tensor and found.dtype == like.dtype and is_same_shape(found.shape, like.shape)
        if not is_plain or found.requires_grad:
            (name,) = self.results
            read = filled(self._reader.read(found, {name: metadata_of(like)}).get(name), like)
            found = without_history(read)
        tangent: Tensor = found
        for one in given:
            if one is not None and may_share(tangent, one):
                return tangent.clone()
        return tangent

    def origin(self, rule: Rule | None = None) -> Origin:
        """Return what errors about the op, or about one of its rules, have in common."""
        return self.plan.declaration.origin(None if rule is None else rule.where)

    def _is_derivable(self, name: str) -> bool:
        """Return True if the backward answers for the incoming gradient of a result."""
        if self.plan.drop_in is not None or name in self.visible:
            return self.plan.has_reverse
        return name in self.plan.named_grads or self.plan.reference is not None

    def derive(
        self, tangents: ByName, names: Sequence[str], results: ByName, gradients: Gradients, *, is_recorded: bool
    ) -> dict[str, Any]:
        """Return the tangents of some results, as the vjp of the vjp."""
        if not self._has_reverse:
            raise self.plan.declaration.error(
                GradientUnavailable,
                "the op has neither a jvp nor a backward rule, and a tangent is requested",
                do="register one with register_jvp, or a differentiable register_backward",
            )
        once = self._once
        if once is not None:
            kind = "in C++" if once.is_in_cpp else "that is once-differentiable"
            raise self.origin(once).error(
                GradientUnavailable,
                f"the op cannot derive forward mode from a backward {kind}",
                do="register_jvp, or write the backward in differentiable operations",
            )
        needs = _given(tangents)
        leaves, lengths = flatten_values([*map(results.__getitem__, names)])
        zeros = list(map(_seed, leaves))
        grads = {**dict.fromkeys(self.results), **dict(zip(names, restore(zeros, lengths), strict=True))}
        seeds: list[Any] = [*filter(partial(is_not, None), zeros)]  # Any: tensors
        # Forward mode saves nothing: what this does for a moment is not for the caller's hooks. What the graph of the
        # tangents holds is.
        with without_hooks() as kept:
            found = self._differentiate(seeds, gradients(needs, grads), tangents) if seeds else None
            if is_recorded:
                kept.pack()
        remaining = iter(found or [None] * len(seeds))
        tangent_of = [None if one is None else next(remaining) for one in zeros]
        return dict(zip(names, restore(tangent_of, lengths), strict=True))

    def _differentiate(
        self, seeds: list[Tensor], gradients: ByName, tangents: ByName
    ) -> tuple[Tensor | None, ...] | None:
        """Return the derivatives of gradients along tangents, by seed; None if no gradient has a tangent."""
        outputs, weights = list[Tensor](), list[Tensor]()
        for name, tangent in tangents.items():
            found = gradients.get(name)
            is_list = isinstance(tangent, (list, tuple))
            for gradient, one in zip(found or (), tangent, strict=False) if is_list else ((found, tangent),):
                if gradient is None or one is None:
                    continue
                if not gradient.requires_grad:
                    raise self.plan.declaration.error(
                        GradientUnavailable,
                        f"the op cannot derive forward mode: the gradient of '{name}' is not differentiable",
                        do=f"register_jvp, or where it is always zero, a backward that returns None for '{name}'"
                        if name in self.plan.uncovered
                        else f"where it is always zero, return None for '{name}'; else register_jvp, or write the "
                        "backward in differentiable operations",
                    )
                outputs.append(sum_to_shape(gradient, one.shape))
                weights.append(one)
        return torch.autograd.grad(outputs, seeds, weights, create_graph=True, allow_unused=True) if outputs else None

    def _from_rule(self, rule: NamedRule, tangents: ByName, values: ByName, metadata: ByName) -> dict[str, Any]:
        self._check_named(rule, tangents)
        arguments: dict[str, Any] = {}
        for name in rule.names:
            if name == "needs":
                arguments[name] = Named(_given(tangents))
            elif name == "meta":
                arguments[name] = Named(metadata)
            elif name in self.asked:
                arguments[name] = plain(tangents[self.asked[name]])
            else:
                arguments[name] = plain(values[name])
        try:
            result = noted(str(self.plan.declaration.name), rule)(**arguments)
        except Exception as error:
            self.note_absent(error, arguments)
            raise
        return self._reader.read(result, metadata)

    def note_absent(self, error: Exception, arguments: ByName) -> None:
        """Note on an exception that left a jvp rule which tangents the rule was given as None."""
        for name, value in arguments.items():
            if name in self.asked and any(one is None for one in flat(value, keep_none=True)):
                add_note(error, f"'{name}' {'is' if value is None else 'holds'} None, which means a tangent of zero")

    def _check_named(self, rule: NamedRule, tangents: ByName) -> None:
        """Refuse a tangent that the rule does not ask for: left out, it would silently count as zero."""
        for name, tangent in tangents.items():
            if f"tangent_{name}" not in rule.names and flat(tangent):
                raise self.origin(rule).error(
                    GradientError,
                    f"'{name}' has a tangent, and the jvp does not take it",
                    expected=f"a parameter 'tangent_{name}'",
                    found=quote(rule.names),
                    do=f"name 'tangent_{name}'; where '{name}' has no derivative, declare it non_differentiable",
                )

    def refuse_reverse(self, unknown: Sequence[str]) -> NoReturn:
        """Refuse reverse mode over forward mode through hidden outputs whose tangents are unknown."""
        raise self.origin(self.plan.jvp).error(
            GradientUnavailable,
            f"the tangent of the hidden output {quote(unknown)} is not known, and a gradient depends on it",
            do=f"return it from the jvp rule by name, take {quote(f'grad_{n}' for n in unknown)} in the "
            "backward, or register a differentiable reference",
        )


def _given(tangents: ByName) -> dict[str, Any]:
    """Return, by input, whether it has a tangent; a list of bools for a list."""
    return {
        name: [one is not None for one in tangent] if isinstance(tangent, (list, tuple)) else tangent is not None
        for name, tangent in tangents.items()
    }


def _seed(result: Any) -> Tensor | None:
    """Return zeros like a result, requiring a gradient: u of the note above; None if it cannot have one."""
    if not isinstance(result, Tensor) or not (result.is_floating_point() or result.is_complex()):
        return None
    return require_gradient(torch.zeros_like(result))
