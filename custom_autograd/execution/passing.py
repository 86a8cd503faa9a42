"""The first call of an op, which Dynamo traces as a call of the dispatcher where both take the same arguments.

Ops with the same number of arguments share the code of that call, under their own names, which takes microseconds at
the declaration. For other ops, a call is generated while Dynamo traces, which then traces twice as many instructions.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from custom_autograd.execution.source import compile_source
from custom_autograd.registration.declaration import Declaration
from custom_autograd.torch_private.compiler import outside_compilation, traced_as


def first_call(call: Callable[..., Any], declaration: Declaration) -> Callable[..., Any] | None:
    """Return a copy of the call that all ops begin with, which Dynamo traces a call of the dispatcher in place of.

    None for an op of which that is not the same call. Any: as the schema declares, here and below.
    """
    traced = _traced_call(declaration)
    if traced is None:
        return None
    assert isinstance(call, FunctionType)
    return traced_as(traced)(FunctionType(_copied(call.__code__), call.__globals__, call.__name__))


@functools.cache
def _copied(code: CodeType) -> CodeType:
    """Return another object, on which Dynamo guards: callers are compiled again where one call replaces the other."""
    return outside_compilation(FunctionType(code.replace(), {})).__code__


def _traced_call(declaration: Declaration) -> Callable[..., Any] | None:
    """Return a call of the dispatcher for an op of tensors; None if anything is converted, refused or left out."""
    schema, arguments = declaration.schema, declaration.schema.arguments
    if schema.hidden_outputs or schema.named_tuple or schema.is_one_tuple or declaration.tree is not None:
        return None
    for argument in arguments:
        is_by_name_or_position = not (argument.is_keyword_only or argument.is_positional_only or argument.is_variadic)
        is_taken = argument.type in ("Tensor", "Tensor?") and argument.to_dispatcher is None
        # Dynamo would guard on defaults of `__call__`, which is given any arguments.
        if not (is_by_name_or_position and is_taken) or argument.has_default or argument.name == "self":
            return None
    names = ("self", *(argument.name for argument in arguments))
    scope = {"__builtins__": vars(builtins)}  # Dynamo reads it
    made = FunctionType(_code(len(arguments)).replace(co_varnames=names), scope)
    made.__qualname__ = str(declaration.name)  # what Python's own errors call it
    return made


@functools.cache
def _code(count: int) -> CodeType:
    names = "".join(f", _{position}" for position in range(count))
    text = f"def traced(self, /{names}):\n    return self._record.overload({names.removeprefix(', ')})\n"
    code: CodeType = compile_source(text, f"call of {count} tensors", {})["traced"].__code__
    return code
