"""Plan: where each derivative of an op comes from, what is saved for it, and whether native code records it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from custom_autograd.core.messages import quote
from custom_autograd.core.signatures import names_in
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.policy_types import SavingPolicy
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import BackwardRule, DropInRule, GradientRule, JvpRule
from custom_autograd.schema.schema import Argument, Output

Result = Argument | Output

SAVED_VALUES = "custom_autograd_parcel"
"""Name of the attribute of torch's ctx that holds what a drop-in rule saved; no user's setup_context uses it."""


class Plan(NamedTuple):
    """Plan of how an op is differentiated.

    Attributes:
        declaration: the op.
        rules: the gradient rules bound by name.
        drop_in: the rule registered through `register_autograd`, or None.
        jvp: the forward-mode rule, or None.
        reference: the differentiable computation, or None; never set for an op that mutates, for it would run a second
            time on what the first has changed, or that draws random numbers, for it would draw others.
        uncovered: the differentiable inputs without a rule.
        named_grads: the results whose incoming gradient some rule names.
        saved: name of each saved input or output -> the inputs for whose gradients it is saved.
        saved_for_hidden: of those inputs, by saved name, the ones for which it is saved only if a hidden output that
            no rule names carries a gradient: an integer does not, and the dtype is known at the call.
    """

    declaration: Declaration
    rules: tuple[GradientRule, ...]
    drop_in: DropInRule | None
    jvp: JvpRule | None
    reference: Callable[..., Any] | None
    uncovered: tuple[str, ...]
    named_grads: frozenset[str]
    saved: dict[str, tuple[str, ...]]
    saved_for_hidden: dict[str, tuple[str, ...]]

    @property
    def saving(self) -> Mapping[str, SavingPolicy]:
        """Return, by name of a saved tensor, how it is kept until the backward."""
        return next((rule.saving for rule in self.rules if isinstance(rule, BackwardRule)), {})

    @property
    def how_to_derive(self) -> str:
        """Return where a derivative can come from that no rule computes, as advice."""
        if self.declaration.may_draw:
            return "from what was drawn, returned as a (hidden) output: a reference would draw again"
        return "or a differentiable reference with register_reference"

    @property
    def once_differentiable(self) -> GradientRule | DropInRule | None:
        """Return a backward that must not be differentiated again, or None."""
        rules = (*self.rules, *(() if self.drop_in is None else (self.drop_in,)))
        return next((rule for rule in rules if rule.is_once_differentiable), None)

    @property
    def is_differentiable(self) -> bool:
        """Return True if calls of the op can record a node."""
        schema = self.declaration.schema
        return len(schema.differentiable_names) > 0 and len(schema.differentiable_results) > 0

    @property
    def has_reverse(self) -> bool:
        """Return True if there is any way to a gradient."""
        return len(self.rules) > 0 or self.drop_in is not None or self.reference is not None

    @property
    def clears_saved(self) -> bool:
        """Return True if the rule is the only owner of what was saved, and may free it."""
        return any(isinstance(rule, BackwardRule) and rule.clears_saved for rule in self.rules)

    @property
    def results(self) -> tuple[Result, ...]:
        """Return what the autograd node returns: every mutated input, then every new output."""
        schema = self.declaration.schema
        return (*schema.mutated_arguments, *schema.fresh_outputs)

    @property
    def saved_tensors(self) -> list[str]:
        """Return the names of the tensors, and lists of tensors, that are saved."""
        tensors = self.declaration.schema.tensor_names
        return [name for name in self.saved if name in tensors]

    @property
    def saved_values(self) -> list[str]:
        """Return the names of the other values that are kept."""
        tensors = self.declaration.schema.tensor_names
        return [name for name in self.saved if name not in tensors]

    def is_always_saved(self, name: str) -> bool:
        """Return True if a tensor is saved, whichever gradients are needed."""
        users, for_hidden = self.saved.get(name, ()), self.saved_for_hidden.get(name, ())
        own = [user for user in users if user not in for_hidden] if for_hidden else users
        return name in self.saved and len(own) == len(self.declaration.schema.differentiable_names)  # each user once

    @property
    def unnamed_results(self) -> tuple[str, ...]:
        """Return the results whose incoming gradient no rule names."""
        return (*self.unnamed_visible, *self.unnamed_hidden)

    @property
    def unnamed_visible(self) -> tuple[str, ...]:
        """Return those that a caller sees, if the gradient of no input answers for them.

        A rule of some inputs need not name a result that these do not reach; one without parameters returns None.
        """
        if not self.named_grads or self.uncovered:
            return ()
        return tuple([name for name in self.declaration.schema.visible_results if name not in self.named_grads])

    @property
    def unnamed_hidden(self) -> tuple[str, ...]:
        """Return the hidden ones, whose gradient only the reference could answer for."""
        if self.drop_in is not None or not self.rules:
            return ()
        return tuple([name for name in self.declaration.schema.hidden_results if name not in self.named_grads])


def plan_of(record: OpRecord) -> Plan:
    """Return where each derivative of an op comes from, decided once for the rules that are registered now."""
    schema, registered = record.declaration.schema, record.registrations
    rules, reference = registered.all_of(GradientRule), record.reference()
    if reference is not None and (schema.mutated_arguments or schema.is_view or record.declaration.may_draw):
        reference = None
    decided = record.declaration, rules, registered.get(DropInRule), registered.get(JvpRule), reference
    if record.road.plan is None or record.road.plan[: len(decided)] != decided:
        record.road.plan = _make_plan(*decided)
    found: Plan = record.road.plan  # type: ignore[assignment]  # only this function sets it
    return found


def _make_plan(
    declaration: Declaration,
    rules: tuple[GradientRule, ...],
    drop_in: DropInRule | None,
    jvp: JvpRule | None,
    reference: Callable[..., Any] | None,  # Any: takes and returns what the schema declares
) -> Plan:
    incoming, valid = declaration.schema.results_by_grad, declaration.schema.differentiable_names
    covered = valid if drop_in is not None else [name for rule in rules for name in (rule.inputs or valid)]
    uncovered = tuple([name for name in valid if name not in covered])
    named = frozenset([incoming[name] for rule in rules for name in rule.names if name in incoming])
    plan = Plan(declaration, rules, drop_in, jvp, reference, uncovered, named, {}, {})
    _decide_what_is_saved(plan)
    return plan


def _decide_what_is_saved(plan: Plan) -> None:
    """Find each saved value, and the inputs for whose gradients it is needed."""
    users = _users_in_rules(plan)
    for_hidden = _users_of_hidden(plan, users)
    if plan.reference is not None and plan.drop_in is None and (plan.uncovered or for_hidden is not None):
        for argument in plan.declaration.schema.arguments:
            mine = users.setdefault(argument.name, [])
            mine.extend(plan.uncovered)
            plan.saved_for_hidden[argument.name] = tuple(n for n in for_hidden or () if n not in mine)
    for name, mine in users.items():
        plan.saved[name] = tuple(dict.fromkeys([*mine, *plan.saved_for_hidden.get(name, ())]))


def _users_in_rules(plan: Plan) -> dict[str, list[str]]:
    """Return what the rules name, and the inputs whose gradients they compute from it."""
    schema = plan.declaration.schema
    valid = schema.differentiable_names
    values = {*schema.argument_names, *[output.name for output in schema.fresh_outputs]}
    users: dict[str, list[str]] = {}
    for rule in plan.rules:
        for name in rule.names:
            if name in values:
                users.setdefault(name, []).extend(rule.inputs or valid)
    for name in plan.jvp.names if plan.jvp is not None else ():
        if name in values:
            users.setdefault(name, [])
    return users


def _users_of_hidden(plan: Plan, users: dict[str, list[str]]) -> list[str] | None:
    """Return the inputs whose gradients need those of hidden outputs that no rule names, or None if nothing does.

    The reference recomputes those from all inputs.
    """
    unnamed = plan.unnamed_hidden
    wanted = [name for hidden in unnamed for name in users.get(hidden, [])]
    return wanted if wanted or (plan.jvp is not None and unnamed) else None


def keeps_metadata(plan: Plan, *, is_strict: bool) -> bool:
    """Return True if metadata must be kept; else it is read from the graph: see `known_of` in derivatives.py."""
    schema = plan.declaration.schema
    if is_strict or plan.clears_saved or schema.mutated_arguments or any(rule.wants_meta for rule in plan.rules):
        return True
    return any(output.type not in ("Tensor", "Tensor[]") for output in schema.outputs)


def why_not(plan: Plan, *, is_strict: bool) -> str | None:
    """Return why native code cannot record calls, or None: it takes plain tensors and rules; arguments as above."""
    if is_strict:
        return "everything is checked in each call (validation)"
    return _why_not_by_schema(plan) or (_why_not_by_name(plan) if plan.drop_in is None else _why_not_with_context(plan))


def _why_not_by_schema(plan: Plan) -> str | None:
    schema = plan.declaration.schema
    if not plan.is_differentiable:
        return "no result can have a gradient"
    if schema.mutated_arguments:
        return "an input is written to"
    for output in schema.outputs:
        if output.type != "Tensor" or output.alias_of is not None:
            return "an output is not a new tensor"
    for argument in schema.arguments:
        if argument.is_converted:
            return "an argument has another form in the dispatcher"
    return None


def _why_not_by_name(plan: Plan) -> str | None:
    if not plan.named_grads:
        return "no rule takes a gradient by name"
    for rule in plan.rules:
        if rule.wants_meta:
            return "a rule asks for meta"
        if isinstance(rule, BackwardRule) and rule.clears_saved:
            return "the rule frees what was saved (clear_saved=)"
        if isinstance(rule, BackwardRule) and rule.saving:
            return "the rule saves by a policy (saving=)"
    return "the reference computes gradients of hidden outputs" if any(plan.saved_for_hidden.values()) else None


def _why_not_with_context(plan: Plan) -> str | None:
    if not uses_own_context(plan):
        return "the rule has a ctx, and the op lists, keyword-only arguments or results without gradients"
    asks_for_more = plan.drop_in is not None and _asks_for_more(plan.drop_in.setup_context)
    return f"setup_context uses one of {quote(NOT_NATIVE)} of ctx" if asks_for_more else None


def sole_rule_of(plan: Plan) -> GradientRule | None:
    """Return the only rule of the op, if it takes gradients and what is saved: native code calls it by itself.

    Where the reference computes other gradients, the quick backward runs if they are needed: ops with lists have none.
    """
    schema = plan.declaration.schema
    if len(plan.rules) != 1 or not plan.named_grads or (schema.has_lists and plan.uncovered):
        return None
    rule, gradients = plan.rules[0], schema.results_by_grad
    return None if [name for name in rule.names if name not in gradients and name not in plan.saved] else rule


def uses_own_context(plan: Plan) -> bool:
    """Return True if a drop-in rule can be given torch's own ctx: all it holds has one entry per argument."""
    schema = plan.declaration.schema
    has_keywords = any(argument.is_keyword_only for argument in schema.arguments)
    is_plain = all(result.type == "Tensor" and result.is_differentiable for result in plan.results)
    return is_plain and not schema.has_lists and not has_keywords


def _asks_for_more(setup: object) -> bool:
    """Return True if a setup_context uses what torch's ctx has and that of native nodes has not."""
    return not names_in(getattr(setup, "__code__", None)).isdisjoint(NOT_NATIVE)


NOT_NATIVE = ("mark_dirty", "mark_shared_storage")
