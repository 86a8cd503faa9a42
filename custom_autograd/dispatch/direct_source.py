"""Writes the direct call of a call: what is asked in each call, and what then runs in place of the dispatcher.

The questions that depend on tensors are one guard (direct_calls.py). Here are the others: those that no dispatch key
answers, and, value by value, whether the dispatcher would pass a number or a string on as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from custom_autograd.calls.kernel_call import write_kernel_call
from custom_autograd.calls.passing import call_kernel
from custom_autograd.calls.reading import are_new, write_reading
from custom_autograd.calls.source import Source, tuple_of
from custom_autograd.core.argument_types import find_element_row
from custom_autograd.core.schema import Argument, Schema
from custom_autograd.torch_private import dispatch, guards
from custom_autograd.torch_private.compiler import compiling_callback
from custom_autograd.torch_private.transforms import is_transforming

PLAIN = "($type({0}) is $Tensor or $type({0}) is $Parameter) and not {0}.is_nested"
MODES = (
    "not $torch_dispatch_modes()",
    "not $is_transforming()",
    "not $profiler._is_profiler_enabled",
    "$forward_ad._current_level < 0",
)


DirectCall: TypeAlias = tuple[Callable[..., bool], Callable[..., Any] | None, Callable[..., Any] | None, bool, bool]
"""One kind of call that needs no dispatcher (a plain tuple: a NamedTuple takes twice as long to unpack).

- check: whether tensors are of that kind, now;
- function: the kernel, which takes and returns what the schema says (Any); None if there is no direct call;
- record: what records the call, where a tensor of that kind requires a gradient, else None;
- is_checked: whether the results of the kernel are to be looked at;
- is_blind: whether the kernel needs no grad mode to be switched off for it.
"""

NO_DIRECT_CALL: DirectCall = (lambda *tensors: False, None, None, True, False)


def helpers() -> dict[str, Any]:
    """Return what the generated source names (Any: functions and modules)."""
    return {
        "torch": torch,
        "Tensor": Tensor,
        "Parameter": torch.nn.Parameter,
        "NO_DIRECT_CALL": NO_DIRECT_CALL,
        "forward_ad": forward_ad,
        "torch_function_modes": guards.torch_function_modes,
        "torch_dispatch_modes": guards.torch_dispatch_modes,
        "is_transforming": is_transforming,
        "profiler": torch.autograd.profiler,
        "is_dynamo_compiling": torch.compiler.is_dynamo_compiling,
        "compiling_callback": compiling_callback,
        "is_grad_enabled": torch.is_grad_enabled,
        "set_grad_enabled": guards.set_grad_enabled,
        "are_new": are_new,
        "increment_version": dispatch.increment_version,
    }


class DirectWriter:
    """Writes the direct call of one op; not at all where it can have none."""

    def __init__(self, source: Source, schema: Schema) -> None:
        self.source = source
        self.schema = schema
        self.tensors = [a for a in schema.tensor_arguments if a.is_differentiable]
        self.fixed = [a for a in schema.tensor_arguments if not a.is_differentiable]
        self.has_pattern = any(a.is_optional or a.is_tensor_list for a in schema.tensor_arguments)

    @property
    def is_possible(self) -> bool:
        """Return True if any call of the op could do without the dispatcher."""
        schema = self.schema
        return bool(schema.tensor_arguments) and not schema.is_view and all(map(_is_known, schema.arguments))

    def write(self, conditions: Sequence[str], *, is_public: bool) -> None:
        """Write the direct call; what follows it in the source is the other way.

        Args:
            conditions: under which it may be taken, besides those on the arguments.
            is_public: whether this is `op(...)`, which returns no hidden outputs, and checks function modes.
        """
        source = self.source
        asked = [condition for condition in [*conditions, *map(_condition, self.schema.arguments)] if condition]
        with source.block(f"if {' and '.join(asked)}"):
            self._write_tensors()
            self._write_choice()
            with source.block("if $function is not None"):
                self._write_taking(is_public=is_public)

    def _write_choice(self) -> None:
        """Choose the direct call: that found last, or the one before, which often takes turns with it, or another."""
        source, pattern = self.source, "$pattern" if self.has_pattern else "None"
        direct_call = "$check, $function, $record, $is_checked, $is_blind"
        differs = f"if not ({self._is_guardable()} and $check({self._guarded()}))"
        first, second = (
            (f"$direct_calls.{name}.get($pattern, $NO_DIRECT_CALL)" for name in ("first", "second"))
            if self.has_pattern
            else ("$direct_calls.last", "$direct_calls.other")
        )
        source.line(f"{direct_call} = {first}")
        with source.block(differs):
            source.line(f"{direct_call} = {second}")
            with source.block(differs):
                source.line(f"{direct_call} = $direct_calls.find({pattern}, {self._found()})")

    def _write_tensors(self) -> None:
        """Write the gathering of tensors where the schema does not fix their number, and the pattern of that number."""
        if not self.has_pattern:
            return
        for label, arguments in (("$tensors", self.tensors), ("$fixed", self.fixed)):
            self.source.line(f"{label} = [{', '.join(a.name for a in arguments if _is_single(a))}]")
            for argument in arguments:
                name = argument.name
                if argument.is_tensor_list:
                    self.source.line(f"{label} += {name}")
                elif argument.is_optional:
                    with self.source.block(f"if {name} is not None"):
                        self.source.line(f"{label}.append({name})")
        marks = [
            f"$len({a.name})" if a.is_tensor_list else f"{a.name} is None"
            for a in (*self.tensors, *self.fixed)
            if not _is_single(a)
        ]
        self.source.line(f"$pattern = {tuple_of(marks)}")

    def _guarded(self) -> str:
        if self.has_pattern:
            return "*$tensors, *$fixed"
        return ", ".join(a.name for a in (*self.tensors, *self.fixed))

    def _is_guardable(self) -> str:
        """Return source that is true for tensors that a guard may be asked about: see guards.py."""
        if self.has_pattern:
            return f"$all([{PLAIN.format('$tensor')} for $tensor in (*$tensors, *$fixed)])"
        return " and ".join(PLAIN.format(a.name) for a in (*self.tensors, *self.fixed))

    def _found(self) -> str:
        if self.has_pattern:
            return "$tensors, $fixed"
        return f"{tuple_of([a.name for a in self.tensors])}, {tuple_of([a.name for a in self.fixed])}"

    def _write_taking(self, *, is_public: bool) -> None:
        """Write the call itself."""
        source, schema = self.source, self.schema
        if not schema.mutated_arguments:
            with source.block("if $record is not None and $is_grad_enabled()"):
                self._write_return(f"$record({', '.join(schema.argument_names)})", hides=is_public)
        is_blind = "$is_blind" if is_public else "$is_blind and not $torch_function_modes()"
        write_kernel_call(source, call_kernel(schema), f"{is_blind} or not $is_grad_enabled()")
        write_reading(source, schema, "$is_checked")
        for argument in schema.mutated_arguments:
            source.line(f"$increment_version({argument.name})")
        self._write_return("$result", hides=is_public)

    def _write_return(self, result: str, *, hides: bool) -> None:
        if hides:
            write_return(self.source, self.schema, result)
        else:
            self.source.line(f"return {result}")


def write_return(source: Source, schema: Schema, result: str, *, is_read: bool = True) -> None:
    """Write what a call returns of all results: hidden outputs are dropped, a NamedTuple is made.

    Args:
        source: to write to.
        schema: of the op.
        result: source of the results.
        is_read: they come from a kernel, and not from the dispatcher, where a tuple of one is a tuple.
    """
    if is_read and schema.is_one_tuple:
        result = f"({result},)"
    if not schema.hidden_outputs and schema.named_tuple is None:
        source.line(f"return {result}")
        return
    targets = [output.name if not output.is_hidden else "$_" for output in schema.outputs]
    source.line(f"{', '.join(targets)} = {result}")
    visible = [output.name for output in schema.visible_outputs]
    if schema.named_tuple is not None and not schema.hidden_outputs:
        source.line(f"return $named_tuple({', '.join(visible)})")
    else:
        source.line(f"return {visible[0] if len(visible) == 1 else tuple_of(visible)}")


def _is_single(argument: Argument) -> bool:
    return argument.type == "Tensor"


def _is_known(argument: Argument) -> bool:
    return _guard(argument) is not None and argument.type != "Tensor?[]"


def _guard(argument: Argument) -> str | None:
    """Return the guard of the argument, or of the elements of a list."""
    row = find_element_row(argument.type)
    return None if row is None else row.guard


def _condition(argument: Argument) -> str:
    """Return source that is true where a value reaches the kernel as it is."""
    name, guard = argument.name, _guard(argument) or ""
    condition = guard.format(name)
    if argument.type.removesuffix("?").endswith("[]"):
        condition = f"($type({name}) is $list or $type({name}) is $tuple)"
        element = guard.format("$item")
        if element:
            condition += f" and $all({element} for $item in {name})"
    if not condition:
        return ""
    return f"({name} is None or {condition})" if argument.is_optional else condition
