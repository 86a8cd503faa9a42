"""What is known of each argument of a target, and of each tensor in a container."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace

from custom_autograd.containers.argument_tree import ArgumentTree
from custom_autograd.containers.fields import Plain, all_nodes
from custom_autograd.registration.rule_types import Gradient, JvpRule, ReferenceRule, Registrations
from custom_autograd.schema.schema import Argument, Schema


@dataclass(frozen=True, slots=True)
class TargetArgument:
    """Facts about one argument of a target."""

    name: str
    is_mutated: bool = False
    is_differentiable: bool = True
    default: object = inspect.Parameter.empty
    kind: object = inspect.Parameter.POSITIONAL_OR_KEYWORD


def argument_of_schema(row: Argument) -> TargetArgument:
    """Return what a schema says of an argument."""
    default = row.default if row.has_default else inspect.Parameter.empty
    return TargetArgument(row.name, row.is_mutated, row.is_differentiable, default, row.kind)


def arguments_with_containers(tree: ArgumentTree, schema: Schema) -> tuple[TargetArgument, ...]:
    """Return the arguments as the author of the op sees them; of a container, what holds for anything in it."""
    found = []
    for node in tree.inputs:
        flat = [argument for argument in schema.arguments if argument.name in node.flat()]
        is_mutated, is_differentiable = any(a.is_mutated for a in flat), any(a.is_differentiable for a in flat)
        parameter = tree.signature.parameters[node.name]
        found.append(TargetArgument(node.name, is_mutated, is_differentiable, parameter.default, parameter.kind))
    return tuple(found)


def arguments_with_surrogates(registrations: Registrations, arguments: Sequence[TargetArgument]) -> dict[str, str]:
    """Return the arguments whose rules do not return the derivative, and the reason that their author gives."""
    found: dict[str, str] = {}
    for rule in registrations.gradient_rules():
        if rule.surrogate:
            names = rule.named if isinstance(rule, Gradient) else [argument.name for argument in arguments]
            found |= dict.fromkeys(names, rule.surrogate)
    return found


def surrogates_of_values(registrations: Registrations) -> tuple[str, str]:
    """Return why the gradients of the reference, and the tangents of the jvp, are not the derivative; else nothing."""
    reference, jvp = registrations.get(ReferenceRule), registrations.get(JvpRule)
    return (reference and reference.surrogate) or "", (jvp and jvp.surrogate) or ""


def fields_in_containers(tree: ArgumentTree, schema: Schema) -> dict[str, TargetArgument]:
    """Return the facts of each tensor that is a flat field, by argument and path, as in `params.weight`."""
    found = {}
    for field in (node for node in all_nodes(tree.inputs) if isinstance(node, Plain)):
        if field.name in schema.argument_names:
            known = argument_of_schema(schema.argument(field.name))
            found[field.path] = replace(known, name=field.path.partition(".")[0].partition("[")[0])
    return found
