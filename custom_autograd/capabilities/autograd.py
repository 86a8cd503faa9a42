"""Reverse mode and forward mode: the rules that are registered for them, and what the reference adds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.core.errors import RegistrationError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import advise, quote, show, suggest
from custom_autograd.core.option_types import check_type
from custom_autograd.core.signatures import read_signature
from custom_autograd.execution.composition import find_composition
from custom_autograd.execution.plan import plan_of
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration import rules
from custom_autograd.registration.capability import Capability, add, registered
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.policy_types import SavingPolicy
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import (
    META,
    NEEDS,
    BackwardRule,
    DropInRule,
    Gradient,
    JvpRule,
    is_in_cpp,
    special_names,
    value_names,
)
from custom_autograd.registration.rules import check_signature

F = TypeVar("F", bound=Callable[..., Any])


class ReverseModeCapability(Capability):
    """Reverse mode."""

    name = "backward"

    def describe(self, record: OpRecord) -> str:
        """Return the rules that return gradients, and what the reference adds."""
        plan = plan_of(record)
        if not plan.declaration.schema.differentiable_arguments:
            return "not differentiable"
        parts = [f"{rule.title} ({rule.location})" for rule in record.registrations.gradient_rules()]
        if not parts:
            return (
                "derived from the reference"
                if plan.reference or find_composition(record)
                else "missing: register_backward"
            )
        if plan.uncovered:
            source = "derived from the reference" if plan.reference else "missing"
            parts.append(f"{', '.join(plan.uncovered)}: {source}")
        return f"registered: {', '.join(parts)}"


class ForwardModeCapability(Capability):
    """Forward mode: tangents."""

    name = "jvp"

    def describe(self, record: OpRecord) -> str:
        """Return the rule, or what it is derived from."""
        plan = plan_of(record)
        if not plan.declaration.schema.differentiable_arguments:
            return "not differentiable"
        found = registered(record.registrations.get(JvpRule))
        if found is not None:
            return found
        once = plan.once_differentiable
        if once is not None:
            return f"missing: the backward is {'in C++' if once.is_in_cpp else 'once-differentiable'}"
        if plan.rules or plan.drop_in:
            return "derived from the backward"
        return "derived from the reference" if plan.reference or find_composition(record) else "missing: register_jvp"


@dataclass(frozen=True, slots=True)
class GradientOptions:
    """Options of `register_backward`, of which `register_grad` has the first three."""

    once_differentiable: bool
    materialize_grads: bool
    surrogate: str | None
    saving: Mapping[str, SavingPolicy] | None = None
    clear_saved: bool = False


def register_backward(record: OpRecord, function: F, options: GradientOptions, *, replace: bool) -> F:
    """Register the gradients of all inputs, bound by name."""
    bound = _bind_gradients(record, BackwardRule.kind, function, (), options)
    policies = adapter_of(record.declaration).by_name({} if options.saving is None else options.saving)
    _check_saving(record.declaration, function, bound[2], policies)
    record.declaration.check_bools(clear_saved=options.clear_saved)
    add(record, BackwardRule(*bound, dict(policies), options.clear_saved), replace=replace)
    plan_of(record)  # so that the first call with gradients finds it
    return function


def register_gradient(
    record: OpRecord, named: tuple[str, ...], function: F, options: GradientOptions, *, replace: bool
) -> F:
    """Register the gradients of some inputs, bound by name."""
    bound = _bind_gradients(record, f"{Gradient.kind} {', '.join(named)}", function, named, options)
    add(record, Gradient(*bound, named), replace=replace)
    return function


def _bind_gradients(
    record: OpRecord, title: str, function: Callable[..., Any], named: tuple[str, ...], options: GradientOptions
) -> tuple[str, Callable[..., Any], tuple[str, ...], tuple[str, ...], bool, bool, frozenset[str], str | None]:
    """Return the fields of a `GradientRule`: the function is bound by the names of its parameters."""
    declaration, materializes, surrogate = record.declaration, options.materialize_grads, options.surrogate
    declaration.check_bools(once_differentiable=options.once_differentiable, materialize_grads=materializes)
    flat, inputs = adapter_of(declaration).gradient_rule(title, function, named)
    names, optional = rules.bind_gradients(declaration, title, flat)
    rules.check_surrogate(declaration, flat, surrogate)
    is_once = options.once_differentiable or is_in_cpp(function)
    return location_of(flat), flat, names, inputs, is_once, materializes, optional, surrogate


def _check_saving(declaration: Declaration, function: object, names: tuple[str, ...], saving: object) -> None:
    """Raise if `saving=` is anything but policies by names of tensors that the rule names."""
    if saving == {}:
        return
    valid = [value.name for value in declaration.schema.values if value.holds_tensors and value.name in names]
    reject = rules.refusing(declaration, function)
    policies = saving if isinstance(saving, Mapping) else {"": saving}
    wrong = next((policy for policy in policies.values() if not isinstance(policy, SavingPolicy)), None)
    if not isinstance(saving, Mapping) or wrong is not None:
        expected = "{'x': custom_autograd.graph.offload()}"
        raise reject("saving= takes policies by name", expected=expected, found=show(saving))
    for name in saving:
        if name not in valid:
            raise reject(
                f"saving= names {name!r}, which is not a tensor that the backward saves",
                expected=quote(valid),
                found=show(name),
                do=suggest(name, valid) or "name an input or an output that is a parameter of the backward",
            )


def check_inputs(record: OpRecord, inputs: Sequence[str]) -> None:
    """Check names given to `register_grad`."""
    valid = adapter_of(record.declaration).differentiable_names()
    reject = partial(record.declaration.error, RegistrationError)
    if not inputs or not all(isinstance(name, str) for name in inputs):
        raise reject(
            "register_grad takes names of inputs",
            expected=quote(valid),
            found=", ".join(show(name) if isinstance(name, str) else type(name).__name__ for name in inputs) or "none",
            do=f"write @op.register_grad({show(next(iter(valid), 'x'))})",
        )
    for name in inputs:
        if inputs.count(name) > 1:
            problem = f"register_grad names {name!r} twice"
            raise reject(problem, expected="each input once", found=quote(inputs), do="name it once")
        if name not in valid:
            raise reject(
                f"register_grad names {name!r}, which is not a differentiable input",
                expected=quote(valid),
                found=repr(name),
                do=advise(name, valid),
            )


def register_jvp(record: OpRecord, function: F, *, surrogate: str | None, replace: bool) -> F:
    """Register a forward-mode rule bound by name."""
    declaration = record.declaration
    flat = adapter_of(declaration).jvp_rule(function)
    special = special_names(declaration.schema, with_grads=False, with_tangents=True)
    names = rules.bind_names(declaration, JvpRule.kind, flat, value_names(declaration.schema), special)
    tangents = [name for name in special if name not in (NEEDS, META)]
    rules.check_takes_one(declaration, JvpRule.kind, flat, names, tangents, "tangent")
    rules.check_surrogate(declaration, flat, surrogate)
    add(record, JvpRule(location_of(flat), flat, names, surrogate), replace=replace)
    return function


def register_drop_in(
    record: OpRecord,
    backward: Callable[..., Any],
    setup_context: Callable[..., Any] | None,
    *,
    surrogate: str | None,
    replace: bool,
) -> None:
    """Register a backward and a setup_context as `torch.library` takes them."""
    reject = rules.refusing(record.declaration, backward)
    if record.declaration.schema.mutated_arguments:
        do = "use register_backward: there, grad_<input> is the gradient after the call"
        raise reject("register_autograd cannot express an op that mutates", do=do)
    check_type(reject, "setup_context", setup_context, (Callable, type(None)), "a function", example="setup_context")
    adapter = adapter_of(record.declaration)
    expected = ["ctx", *(f"grad_{name}" for name in adapter.output_names())]
    check_signature(record.declaration, "backward", backward, expected)
    rules.check_surrogate(record.declaration, backward, surrogate)
    backward, setup_context = adapter.drop_in(backward, setup_context)
    takes_keywords, by_keyword = (False, False) if setup_context is None else _setup_style(record, setup_context)
    rule = DropInRule(location_of(backward), backward, setup_context, takes_keywords, by_keyword, surrogate)
    add(record, rule, replace=replace)


def _setup_style(record: OpRecord, setup_context: Callable[..., Any]) -> tuple[bool, bool]:
    """Return whether a setup_context has a parameter for keyword-only inputs, and whether it is called by keyword."""
    # Torch calls it by keyword, and people name its parameters as they like.
    parameters = read_signature(setup_context).parameters
    is_catch_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    has_keywords = any(argument.is_keyword_only for argument in record.declaration.schema.arguments)
    takes_keywords = has_keywords and ("keyword_only_inputs" in parameters or is_catch_all)
    by_keyword = is_catch_all or parameters.keys() >= {"ctx", "inputs", "output"}
    keywords = ["ctx", "inputs", "output"] + (["keyword_only_inputs"] if takes_keywords else [])
    positional, by_name = ([], keywords) if by_keyword else (keywords, [])
    check_signature(record.declaration, "setup_context", setup_context, positional, by_name)
    return takes_keywords, by_keyword
