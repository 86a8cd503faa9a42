"""Source of the arguments of a call: to the dispatcher, to what is called like the op, and to a kernel."""

from __future__ import annotations

from collections.abc import Mapping

from custom_autograd.core.schema import Argument, Schema


def pass_on(schema: Schema, *, to_user: bool = False) -> str:
    """Return source that hands all arguments on, keyword-only ones by keyword.

    Args:
        schema: of the op.
        to_user: to what is called like the op, rather than to the dispatcher.
    """
    values = {a.name: f"{'*' * (to_user and a.is_variadic)}{a.name}" for a in schema.arguments}
    return arguments_of(schema, values)


def call_kernel(schema: Schema, *, is_from_dispatcher: bool = False) -> str:
    """Return source of a call of `$function` with what the dispatcher hands a kernel.

    Args:
        schema: of the op.
        is_from_dispatcher: the values came through it already.
    """
    values = {a.name: _for_kernel(a, is_from_dispatcher=is_from_dispatcher) for a in schema.arguments}
    return f"$function({arguments_of(schema, values)})"


def arguments_of(schema: Schema, values: Mapping[str, str]) -> str:
    """Return source of the arguments of a call, from the source of each: keyword-only ones by keyword."""
    positional = [values[a.name] for a in schema.arguments if not a.is_keyword_only]
    keywords = [f"{a.name}={values[a.name]}" for a in schema.arguments if a.is_keyword_only]
    return ", ".join([*positional, *keywords])


def _for_kernel(argument: Argument, *, is_from_dispatcher: bool) -> str:
    if argument.is_variadic:
        has_conversion = argument.from_dispatcher is not None
        return f"*$from_dispatcher${argument.name}({argument.name})" if has_conversion else f"*{argument.name}"
    is_own = is_from_dispatcher and not has_list_by_default(argument)
    if argument.from_dispatcher is None and (is_own or not _is_list(argument)):
        return argument.name
    return _copied(argument) if argument.from_dispatcher is None else in_users_form(argument)


def in_users_form(argument: Argument) -> str:
    """Return source of an argument as kernels and rules see it.

    A list of numbers is a copy, which nothing else changes.
    """
    if argument.from_dispatcher is not None:
        return f"$from_dispatcher${argument.name}({argument.name})"
    return _copied(argument) if _is_list(argument) and not argument.holds_tensors else argument.name


def has_list_by_default(argument: Argument) -> bool:
    """Return True if its default is a list; the dispatcher leaves it out, since all calls would share the list."""
    return argument.has_default and isinstance(argument.default, list)


def _is_list(argument: Argument) -> bool:
    return argument.type.removesuffix("?").endswith("[]")


def _copied(argument: Argument) -> str:
    copied = f"$list({argument.name})"  # a list of its own, as from the dispatcher
    return f"None if {argument.name} is None else {copied}" if argument.is_optional else copied
