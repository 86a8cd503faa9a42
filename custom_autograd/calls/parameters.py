"""Source of the parameters of an op: the names that belong to it, its parameter list, defaults and conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from custom_autograd.calls.source import Source, literal
from custom_autograd.core.conversions import GENERATOR_IN_GRAPH
from custom_autograd.core.errors import KernelError
from custom_autograd.core.schema import Argument, Schema
from custom_autograd.registration.declaration import Declaration
from custom_autograd.torch_private.compiler import constant_in_graphs, raise_text


def own_names(schema: Schema, name: str) -> set[str]:
    """Return the names that generated source must leave to the op."""
    return {name, *schema.argument_names, *schema.output_names}


def signature(schema: Schema, *, first: str = "", rest: str = "", for_dispatcher: bool) -> str:
    """Return source of a parameter list, with defaults.

    Args:
        schema: of the op.
        first: a parameter before the op's own.
        rest: what takes further positional arguments, unless the op does.
        for_dispatcher: as the dispatcher calls it, with defaults in its form, rather than as users do.
    """
    parts, has_star = [first] if first else [], False
    for argument in schema.arguments:
        is_variadic = argument.is_variadic and not for_dispatcher
        if argument.is_keyword_only and not has_star:
            parts.append(f"*{rest}")
        has_star |= argument.is_keyword_only or is_variadic
        default = default_of(argument, for_dispatcher=for_dispatcher)[0] if argument.has_default else ""
        if argument.is_variadic and for_dispatcher:
            default = "()"  # the dispatcher always gives it; Python wants a default behind others
        parts.append(f"{'*' * is_variadic}{argument.name}{'=' * bool(default)}{default}")
    if rest and not has_star:
        parts.append(f"*{rest}")
    nameless = bool(first) + sum(argument.is_positional_only for argument in schema.arguments)
    if nameless and not for_dispatcher:
        parts.insert(nameless, "/")
    return ", ".join(parts)


def by_position(schema: Schema) -> list[str]:
    """Return source of parameters that take all arguments by position, with the dispatcher's defaults at the end."""
    parameters: list[str] = []
    is_tail = True
    for argument in reversed(schema.arguments):
        is_tail = is_tail and argument.has_default
        default = f"={default_of(argument, for_dispatcher=True)[0]}" if is_tail else ""
        parameters.append(argument.name + default)
    return parameters[::-1]


def default_of(argument: Argument, *, for_dispatcher: bool) -> tuple[str, Any]:
    """Return source of a default, and the value of the name in that source (Any: a default of any type)."""
    value = argument.default
    if for_dispatcher and argument.to_dispatcher is not None:
        value = argument.to_dispatcher(value)
    if argument.type in ("float", "float?") and type(value) is int:
        value = float(value)
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return literal(value), value
    return f"${'dispatcher_default' if for_dispatcher else 'default'}${argument.name}", value


def defaults(schema: Schema) -> dict[str, Any]:
    """Return the values of the names of defaults in generated source (Any: defaults of any type)."""
    found = {}
    for argument in schema.arguments:
        if argument.has_default:
            for for_dispatcher in (False, True):
                name, value = default_of(argument, for_dispatcher=for_dispatcher)
                found[name] = value
    return {name.removeprefix("$"): value for name, value in found.items() if name.startswith("$")}


def conversions(declaration: Declaration) -> dict[str, Any]:
    """Return the converters that generated source names after arguments (Any: functions of one value)."""
    names: dict[str, Any] = {}
    for argument in declaration.schema.arguments:
        if argument.to_dispatcher is not None:
            names[f"to_dispatcher${argument.name}"] = _checked(declaration, argument, argument.to_dispatcher)
        names[f"from_dispatcher${argument.name}"] = argument.from_dispatcher
    return names


def values_of(declaration: Declaration) -> dict[str, Any]:
    """Return defaults and conversions that generated source names after arguments (Any: of any type)."""
    return {**defaults(declaration.schema), **conversions(declaration)}


def _checked(declaration: Declaration, argument: Argument, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a conversion whose refusal names the op and the argument (Any: one value)."""

    @constant_in_graphs  # Dynamo cannot trace how a message is laid out
    def refusal(reason: str) -> str:
        do = None if reason.startswith(GENERATOR_IN_GRAPH) else f"pass {argument.example}, for example"
        return str(declaration.origin().error(KernelError, f"argument '{argument.name}': {reason}", do=do))

    def convert_or_refuse(value: Any) -> Any:
        try:
            return convert(value)
        except ValueError as error:
            reason = str(error)
        return raise_text(KernelError, refusal(reason))  # not from None: Dynamo of torch 2.11 cannot trace that

    return convert_or_refuse


def write_conversions(source: Source, schema: Schema) -> None:
    """Write the conversion of each argument that the dispatcher cannot hold."""
    for argument in schema.arguments:
        if argument.to_dispatcher is not None:
            source.line(f"{argument.name} = $to_dispatcher${argument.name}({argument.name})")
