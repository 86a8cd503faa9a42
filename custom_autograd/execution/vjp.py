"""The gradients of an op's inputs, from the rules bound by name and, where they are silent, from the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientUnavailable, Origin
from custom_autograd.core.messages import quote
from custom_autograd.execution.differentiated_reference import reference_gradients
from custom_autograd.execution.gradients import GradientReader
from custom_autograd.execution.plan import Plan
from custom_autograd.registration.rule_types import GradientRule
from custom_autograd.values.tensors import first_tensor, is_wanted, materialize, plain, tensors_in
from custom_autograd.values.user_code import Named, explain_rule, noted

# A backward that must not be differentiated again: its result raises when a second derivative is really asked for.
#
# Grad mode says nothing about that (`torch.func.grad` always has it on), and an error tied to the incoming gradients
# alone misses `create_graph=True` with a constant one. So the result is tied to everything the backward depended on.


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
    """Return a gradient that raises when it is differentiated."""
    if not torch.is_grad_enabled():
        return gradient
    if isinstance(gradient, list):
        return [forbid_second_derivative(one, message, dependencies) for one in gradient]
    if gradient is None:
        return None
    tensors = [d for d in tensors_in(dependencies) if d.is_floating_point() or d.is_complex()]
    apply: Callable[..., Tensor] = OnceDifferentiable.apply
    return apply(gradient.detach(), message, *tensors)


ByName = Mapping[str, Any]  # Any: tensors, lists of tensors, and non-tensor values, by input or output name


class Vjp:
    """Computes gradients by name. Made once per plan; holds nothing of a call."""

    def __init__(self, plan: Plan, *, is_checked: bool, is_strict: bool) -> None:
        self.plan = plan
        self.is_checked, self.is_strict = is_checked, is_strict
        self.schema = plan.declaration.schema
        self.unnamed, self.unnamed_visible = plan.unnamed_results, plan.unnamed_visible
        self.uncovered = plan.uncovered
        self.steps = [Step(self, rule) for rule in plan.rules]

    def __call__(self, needs: ByName, grads: ByName, values: ByName, metadata: ByName) -> dict[str, Any]:
        """Return the gradient of each differentiable input.

        Returns:
            By input: a tensor, None, or a list of those for a list.
        """
        found: dict[str, Any] = dict.fromkeys(needs)
        silent = self._silent(grads) if self.unnamed else {}
        if len(silent) < len(grads) or not silent:
            wanted = [name for name, need in needs.items() if need is True or is_wanted(need)]
            for step in self.steps:
                if not step.inputs.isdisjoint(wanted):
                    found.update(step(needs, grads, values, metadata))
        if self.uncovered or silent:
            self._add_from_reference(found, silent, needs, grads, values)
        return found

    def _silent(self, grads: ByName) -> dict[str, Any]:
        """Return the gradients of results that no rule names, where they are defined."""
        return {name: grads[name] for name in self.unnamed if first_tensor([grads[name]]) is not None}

    def _add_from_reference(
        self, found: dict[str, Any], silent: ByName, needs: ByName, grads: ByName, values: ByName
    ) -> None:
        uncovered = {name: needs[name] for name in self.uncovered if is_wanted(needs[name])}
        if not uncovered and not silent:
            return
        dropped = [name for name in silent if name in self.unnamed_visible]
        if dropped and any(map(is_wanted, needs.values())):
            raise self._dropped(dropped[0])
        if self.plan.reference is None:
            raise self._missing(tuple(uncovered), tuple(silent))
        if uncovered:
            found.update(reference_gradients(self.plan, self.plan.reference, uncovered, grads, values))
        if silent:
            covered = {name: needs[name] for name in needs if name not in uncovered and is_wanted(needs[name])}
            shares = reference_gradients(self.plan, self.plan.reference, covered, silent, values)
            for name, share in shares.items():
                found[name] = _sum(found[name], share)

    def _dropped(self, result: str) -> GradientUnavailable:
        """Return the error of a gradient that arrives for a result, and that no rule would look at."""
        grad = self.schema.grad_names[result]
        return self.plan.declaration.error(
            GradientUnavailable,
            f"the gradient of '{result}' arrives, and no rule names it",
            expected=f"{grad!r} among the parameters of a rule",
            found=quote(name for rule in self.plan.rules for name in rule.names),
            rule=", ".join(rule.location for rule in self.plan.rules),
            do=f"take {grad!r} in the rule and add its share, or declare the op with non_differentiable=({result!r},)",
        )

    def _missing(self, uncovered: tuple[str, ...], silent: tuple[str, ...]) -> GradientUnavailable:
        if uncovered:
            problem = f"there is no rule for the gradient of {quote(uncovered)}"
            do = f"register one with register_backward or register_grad, {self.plan.how_to_derive}"
        else:
            problem = (
                f"a second derivative needs the gradient of the hidden output {quote(silent)}, which no rule names"
            )
            names = quote(self.schema.grad_names[name] for name in silent)
            do = f"take {names} in the backward rule and add its share, {self.plan.how_to_derive}"
        rules = ", ".join(rule.location for rule in self.plan.rules) or None
        return self.plan.declaration.error(GradientUnavailable, problem, rule=rules, do=do)


class Step:
    """One rule: what to call it with, and how to read what it returns."""

    def __init__(self, vjp: Vjp, rule: GradientRule) -> None:
        declaration = vjp.plan.declaration
        self.op = str(declaration.name)
        self.rule = rule
        self.reader = GradientReader(declaration, rule, is_checked=vjp.is_checked, is_strict=vjp.is_strict)
        self.inputs = frozenset(self.reader.inputs)
        self.results = vjp.schema.results_by_grad
        self.refusal = _refusal(declaration.origin(rule.where), rule)

    def __call__(self, needs: ByName, grads: ByName, values: ByName, metadata: ByName) -> dict[str, Any]:
        """Return the gradients of the rule's inputs; arguments as in `Vjp`."""
        arguments = self._arguments(needs, grads, values, metadata)
        if not self.rule.is_once_differentiable:
            return self._run(arguments, needs, metadata)
        with torch.no_grad():
            found = self._run(arguments, needs, metadata)
        dependencies = list(arguments.values())
        return {name: forbid_second_derivative(one, str(self.refusal), dependencies) for name, one in found.items()}

    def _run(self, arguments: ByName, needs: ByName, metadata: ByName) -> dict[str, Any]:
        try:
            return self.reader.read(self.rule.function(**arguments), needs, metadata)
        except Exception as error:
            explain_rule(error, self.op, self.rule)
            raise

    def noting(self, function: Callable[..., Any]) -> Callable[..., Any]:  # Any: any signature
        """Return a function that runs the rule's code, and notes where an exception came from."""
        return noted(self.op, self.rule, function)

    def note(self, error: BaseException) -> None:
        """Note on an exception that it came from the rule; raise another one if it read memory that is not there."""
        explain_rule(error, self.op, self.rule)

    def _arguments(self, needs: ByName, grads: ByName, values: ByName, metadata: ByName) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        for name in self.rule.names:
            if name == "needs":
                arguments[name] = Named(needs)
            elif name == "meta":
                arguments[name] = Named(metadata)
            elif name in self.results:
                gradient = plain(grads[self.results[name]])
                if name in self.rule.optional and first_tensor([gradient]) is None:
                    gradient = None  # of a list, too
                elif self.rule.materializes and not isinstance(gradient, Tensor):
                    gradient = materialize(gradient, metadata[self.results[name]], first_tensor(grads.values()))
                arguments[name] = gradient
            else:
                arguments[name] = plain(values[name])
        return arguments


def _refusal(origin: Origin, rule: GradientRule) -> GradientUnavailable:
    """Return the error of a second derivative of a rule that is differentiable only once."""
    if rule.is_in_cpp:
        return origin.error(
            GradientUnavailable,
            "a backward in C++ can be differentiated only once, and a second derivative is requested",
            do="make the C++ function a kernel of an op with a backward or reference, and call it in a rule in Python",
        )
    return origin.error(
        GradientUnavailable,
        "the backward is declared once-differentiable, and a second derivative is requested",
        do="write the rule in differentiable operations, and leave once_differentiable out",
    )


def _sum(first: Any, second: Any) -> Any:  # Any: tensors, None, or lists of those
    """Return the sum of two gradients, where None is zero."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, list):
        return [_sum(one, other) for one, other in zip(first, second, strict=True)]
    return first + second
