"""Generates `call`, what `op(...)` runs, and `kernel`, what stands at each backend's dispatch key."""

from __future__ import annotations

from typing import Any

from custom_autograd.core.schema import Argument, Schema
from custom_autograd.runtime.source import Source, tuple_of


def signature(schema: Schema, *, first: str = "", for_dispatcher: bool) -> str:
    """Source of a parameter list, with defaults.

    Args:
        schema: of the op.
        first: parameters that stand before the op's own.
        for_dispatcher: defaults in the dispatcher's form rather than the user's.
    """
    parts = [first] if first else []
    is_behind_star = False
    for argument in schema.arguments:
        if argument.is_keyword_only and not is_behind_star:
            parts.append("*")
            is_behind_star = True
        parts.append(f"{argument.name}={default_of(argument, for_dispatcher=for_dispatcher)[0]}"
                     if argument.has_default else argument.name)  # fmt: skip
    return ", ".join(parts)


def default_of(argument: Argument, *, for_dispatcher: bool) -> tuple[str, Any]:
    """Source of a default, and the value a name in that source stands for (Any: a default of any type)."""
    value = argument.default
    if for_dispatcher and argument.to_dispatcher is not None:
        value = argument.to_dispatcher(value)
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and value == value):
        if not isinstance(value, float) or abs(value) != float("inf"):
            return repr(value), value
    return f"default_{argument.name}" if not for_dispatcher else f"dispatcher_default_{argument.name}", value


def defaults(schema: Schema) -> dict[str, Any]:
    """The values that names of defaults in generated source stand for (Any: defaults of any type)."""
    found = {}
    for argument in schema.arguments:
        if argument.has_default:
            for for_dispatcher in (False, True):
                name, value = default_of(argument, for_dispatcher=for_dispatcher)
                found[name] = value
    return {name: value for name, value in found.items() if name.isidentifier() and "default_" in name}


def pass_on(schema: Schema, expression: str = "{}") -> str:
    """Source that hands all arguments on, keyword-only ones by keyword."""
    positional = [expression.format(a.name) for a in schema.arguments if not a.is_keyword_only]
    keywords = [f"{a.name}={expression.format(a.name)}" for a in schema.arguments if a.is_keyword_only]
    return ", ".join([*positional, *keywords])


def write_call(source: Source, schema: Schema, name: str) -> None:
    """Writes `call`: converts what the dispatcher cannot hold, and drops hidden outputs."""
    with source.block(f"def $call({signature(schema, for_dispatcher=False)})"):
        source.line(f'"""What {name}(...) runs."""')
        for argument in schema.arguments:
            if argument.to_dispatcher is not None:
                source.line(f"{argument.name} = to_dispatcher_{argument.name}({argument.name})")
        result = f"$overload({pass_on(schema)})"
        visible = [output.name for output in schema.visible_outputs]
        if not schema.hidden_outputs and schema.named_tuple is None:
            source.line(f"return {result}")
            return
        targets = [output.name if not output.is_hidden else "_" for output in schema.outputs]
        source.line(f"{', '.join(targets)} = {result}")
        if schema.named_tuple is not None and not schema.hidden_outputs:
            source.line(f"return $named_tuple({', '.join(visible)})")
        else:
            source.line(f"return {visible[0] if len(visible) == 1 else tuple_of(visible)}")


def write_kernel(source: Source, schema: Schema) -> None:
    """Writes `kernel`: finds the function, runs it outside autograd, checks its result."""
    with source.block(f"def $kernel({signature(schema, first='$device', for_dispatcher=True)})"):
        source.line('"""What stands at a backend\'s dispatch key."""')
        for argument in schema.arguments:
            if argument.from_dispatcher is not None:
                source.line(f"{argument.name} = from_dispatcher_{argument.name}({argument.name})")
        source.line("$function = $choose($device)")
        with source.block("with $no_grad()"):
            source.line(f"$result = $function({pass_on(schema)})")
        pairs = ", ".join(f'"{argument.name}": {argument.name}' for argument in schema.tensor_arguments)
        source.line(f"return $read_result($result, {{{pairs}}}, $function)")
