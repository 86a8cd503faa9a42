"""The names that a rule can take: of inputs, outputs, gradients and tangents, and what they stand for."""

from __future__ import annotations

from custom_autograd.core.schema import Argument, Output, Schema

NEEDS = "needs"
META = "meta"


def grad_names(schema: Schema) -> dict[str, str]:
    """Return the name of each differentiable result -> the name its incoming gradient has in rules.

    A mutated input is a result too: its gradient is with respect to its value after the call.
    """
    return {result.name: f"grad_{result.name}" for result in differentiable_results(schema)}


def differentiable_results(schema: Schema) -> tuple[Argument | Output, ...]:
    """Return what a call leaves behind that may carry a gradient: mutated inputs first, then new outputs."""
    written = tuple(argument for argument in schema.mutated_arguments if argument.is_differentiable)
    return written + tuple(output for output in schema.fresh_outputs if output.is_differentiable)


def sole_result(schema: Schema) -> str | None:
    """Return the one visible differentiable result, whose gradient may be called `grad`; None if there are several."""
    visible = [r.name for r in differentiable_results(schema) if not (isinstance(r, Output) and r.is_hidden)]
    return visible[0] if len(visible) == 1 else None


def value_names(schema: Schema) -> dict[str, str]:
    """Return the inputs and outputs that a rule can name, with what each is."""
    outputs = {output.name: f"output '{output.name}'" for output in schema.fresh_outputs}
    return {name: f"argument '{name}'" for name in schema.argument_names} | outputs


def special_names(schema: Schema, *, with_grads: bool, with_tangents: bool) -> dict[str, str]:
    """Return what else a rule can name, with what each is."""
    names = {NEEDS: "which gradients are needed", META: "the metadata of tensors"}
    sole = sole_result(schema)
    if with_grads and sole is not None:
        names["grad"] = f"the incoming gradient of '{sole}'"
    if with_grads:
        names |= {name: f"the incoming gradient of '{result}'" for result, name in grad_names(schema).items()}
    if with_tangents:
        names |= {f"tangent_{a.name}": f"the tangent of '{a.name}'" for a in schema.differentiable_arguments}
    return names
