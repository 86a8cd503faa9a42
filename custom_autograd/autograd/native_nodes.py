"""Which ops have native nodes, and what those run: known from a plan, before any code is written."""

from __future__ import annotations

from custom_autograd.autograd.plan import Plan
from custom_autograd.core.code_names import names_in
from custom_autograd.core.messages import quote
from custom_autograd.registration.rule_types import Backward, GradientRule


def keeps_metadata(plan: Plan, *, is_strict: bool) -> bool:
    """Return True if metadata must be kept; else it is read from the graph: see `known_of` in derivatives.py.

    Args:
        plan: of the op.
        is_strict: gradients that are not needed are looked at, too.
    """
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
        if isinstance(rule, Backward) and rule.clears_saved:
            return "the rule frees what was saved (clear_saved=)"
        if isinstance(rule, Backward) and rule.saving:
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
