"""The names that a rule can take: of inputs, outputs, gradients and tangents, and what they stand for."""

from __future__ import annotations

from custom_autograd.core.schema import Schema

NEEDS = "needs"
META = "meta"


def value_names(schema: Schema) -> dict[str, str]:
    """Return the inputs and outputs that a rule can name, with what each is."""
    outputs = {output.name: f"output '{output.name}'" for output in schema.fresh_outputs}
    return {name: f"argument '{name}'" for name in schema.argument_names} | outputs


def special_names(schema: Schema, *, with_grads: bool, with_tangents: bool) -> dict[str, str]:
    """Return what else a rule can name, with what each is."""
    names = {NEEDS: "which gradients are needed", META: "the metadata of tensors"}
    if with_grads:
        names |= {name: f"the incoming gradient of '{result}'" for name, result in schema.results_by_grad.items()}
    if with_tangents:
        names |= {f"tangent_{a.name}": f"the tangent of '{a.name}'" for a in schema.differentiable_arguments}
    return names
