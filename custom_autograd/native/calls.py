"""The direct calls of one op as native code recognises them: which ops can have them, and how they are handed over.

Python proves (dispatch/direct_calls.py), and native code (source/call.cpp) recognises the same kinds of calls by
itself: an op's class gets a `tp_call` in C, which calls the kernel, looks at what it returns, and records a node. Calls
of other kinds run the generated `__call__`, as without it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch

from custom_autograd.autograd.vjp import Step
from custom_autograd.calls.parameters import default_of
from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.core.schema import Argument
from custom_autograd.dispatch.direct_calls import DirectCallTable
from custom_autograd.dispatch.direct_source import DirectCall
from custom_autograd.dispatch.generated import Program, program_of
from custom_autograd.pytrees.op_adapter import adapter_of
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private.compiled_backward import trace_backward
from custom_autograd.torch_private.compiler import compiling_callback
from custom_autograd.torch_private.functions import name_of_nodes
from custom_autograd.torch_private.native_context import NativeContext, running_context
from custom_autograd.torch_private.registered_kernels import changes
from custom_autograd.values.results import ResultReader

MOST = 16  # arguments and outputs of an op, together: MOST in source/node.h
RULES: dict[str, tuple[str, type]] = {
    "Tensor": ("T", torch.Tensor),
    "SymInt": ("i", int),
    "int": ("i", int),
    "str": ("s", str),
    "bool": ("=", bool),
    "float": ("=", float),
    "complex": ("=", complex),
    "ScalarType": ("=", torch.dtype),
    "Device": ("=", torch.device),
    "Layout": ("=", torch.layout),
    "MemoryFormat": ("=", torch.memory_format),
}
"""By type of the dispatcher: how native code knows that it passes a value on unchanged; see `Row.guard`."""


class NativeCalls:
    """The native calls of one op.

    Attributes:
        are_learnt: whether kinds of calls are handed over; tests of generated Python switch it off.
    """

    are_learnt = True

    def __init__(self, record: OpRecord, native: ModuleType) -> None:
        schema = record.declaration.schema
        self._record = record
        self._facts: tuple[Program, RecipeFacts] | None = None
        self._reader = ResultReader(record.declaration, record.kernels.describe)
        rows = tuple(map(_row, schema.arguments))
        visible = sum(1 << index for index, output in enumerate(schema.outputs) if not output.is_hidden)
        written = sum(1 << index for index, argument in enumerate(schema.arguments) if argument.is_mutated)
        keywords = tuple(argument.name for argument in schema.arguments if argument.is_keyword_only)
        objects = (
            self.learn, self.read, record.kernels.instead, KernelUnavailable, compiling_callback, schema.named_tuple,
            keywords or None,
        )  # fmt: skip
        self.call = native.Call(rows, len(schema.outputs), visible, written, objects)

    def forget(self) -> None:
        """Forget all kinds of calls."""
        self.call.forget()

    def learn(self, call: Any, values: tuple[Any, ...]) -> None:
        """Hand over the kind of a call if it has been proven.

        Args:
            call: the native object.
            values: the arguments, one for each of the schema.
        """
        if not NativeCalls.are_learnt:
            return
        record, table, epoch = self._record, self._record.direct_calls, changes.count
        assert isinstance(table, DirectCallTable)
        pattern, tensors = _pattern(record, values)
        found = table.find_known(pattern, tensors)
        if found is None:
            return
        _, function, recorder, is_checked, is_blind = found
        facts = self._facts_for(found)
        with changes.lock:
            if epoch == changes.count:
                call.add(values, function, recorder, is_checked, is_blind, facts)

    def read(self, result: Any, values: tuple[Any, ...], function: Any, is_checked: bool) -> Any:
        """Return the results of a kernel that are not the plain new tensors they should be, or raise."""
        schema = self._record.declaration.schema
        rows = zip(schema.arguments, values, strict=True)
        tensors = {argument.name: value for argument, value in rows if argument.holds_tensors}
        return self._reader.read(result, tensors, function, is_checked=is_checked)

    def _facts_for(self, found: DirectCall) -> RecipeFacts | None:
        program = program_of(self._record)
        if found[2] is None or program.native_quick is None:
            return None
        if self._facts is None or self._facts[0] is not program:
            self._facts = program, facts_of(program)
        return self._facts[1]


@dataclass(frozen=True, slots=True)
class RecipeFacts:
    """What native code is told of the nodes of an op.

    Attributes:
        id: a number that no other rules have, by which compiled autograd knows a graph again.
        name: of the nodes.
        is_checked: gradients are compared with their inputs.
        differentiable_inputs: by input, whether it may carry a gradient, as 0 and 1.
        differentiable_outputs: the same by output.
        saved: (is an output, index, inputs for whose gradients it is saved as bits, name) of each saved tensor.
        kept: the inputs that are kept and are not tensors.
        quick: the quick backward: gradients, saved, needs, kept -> a gradient for each input, or NotImplemented.
        general: the backward of the Function: ctx, gradients -> a gradient for each input.
        fit: input, gradient -> the gradient as it may be returned, or an error.
        context: node, saved, needs, kept, is traced -> a ctx.
        trace: records a backward in compiled autograd.
        rule: the one rule of the op where it can be called without the quick backward, or None.
    """

    id: int
    name: str
    is_checked: bool
    differentiable_inputs: tuple[int, ...]
    differentiable_outputs: tuple[int, ...]
    saved: tuple[tuple[bool, int, int, str], ...]
    kept: tuple[int, ...]
    quick: Any
    general: Any
    fit: Any
    context: Any
    trace: Any
    rule: RuleFacts | None


@dataclass(frozen=True, slots=True)
class RuleFacts:
    """What native code is told of the one rule of an op.

    Attributes:
        function: the rule.
        keywords: the names of its parameters, if it takes them by keyword, or None.
        arguments: what it is given: ("gradient", output, is filled with zeros), ("saved", index, False) or ("kept",
            index, False), in order.
        inputs: the inputs whose gradients it returns, in order.
        names: their names.
        unnamed: the outputs whose gradients it does not take.
        is_once_differentiable: it is not to be recorded.
        read: makes a tuple of gradients of anything else that it returned, or raises.
        note: notes on an error that the rule raised it.
    """

    function: Any
    keywords: tuple[str, ...] | None
    arguments: tuple[tuple[str, int, bool], ...]
    inputs: tuple[int, ...]
    names: tuple[str, ...]
    unnamed: tuple[int, ...]
    is_once_differentiable: bool
    read: Any
    note: Any


def facts_of(program: Program) -> RecipeFacts:
    """Return what native code is told of the nodes that a program records."""
    writer, schema = program.writer, program.plan.declaration.schema
    inputs, outputs = list(schema.argument_names), list(schema.output_names)
    saved = []
    for name in writer.saved_tensors:
        is_output = name not in inputs
        index = outputs.index(name) if is_output else inputs.index(name)
        users = ALWAYS if writer.is_always_saved(name) else sum(1 << inputs.index(u) for u in program.plan.saved[name])
        saved.append((is_output, index, users, name))
    return RecipeFacts(
        id=next(_ids),
        name=name_of_nodes(program.function),
        is_checked=program.is_checked,
        differentiable_inputs=tuple(int(argument.is_differentiable) for argument in schema.arguments),
        differentiable_outputs=tuple(int(output.is_differentiable) for output in schema.outputs),
        saved=tuple(saved),
        kept=tuple(inputs.index(name) for name in writer.saved_values),
        quick=program.native_quick,
        general=program.function.backward,
        fit=partial(_fit, program),
        context=partial(_context, program, tuple(writer.saved_values)),
        trace=trace_backward,
        rule=_sole_rule_of(program),
    )


def _sole_rule_of(program: Program) -> RuleFacts | None:
    """Return the one rule of an op, if native code can call it by itself."""
    writer, steps = program.writer, program.derivatives.vjp.steps
    if len(steps) != 1 or program.plan.uncovered or program.has_wrapped_backward:
        return None
    step, outputs = steps[0], list(program.plan.declaration.schema.output_names)
    inputs = list(program.plan.declaration.schema.argument_names)
    arguments = []
    for name in step.rule.names:
        if name in step.results:
            fills = step.rule.fills(name)
            arguments.append(("gradient", outputs.index(step.results[name]), fills))
        elif name in writer.saved_tensors:
            arguments.append(("saved", writer.saved_tensors.index(name), False))
        elif name in writer.saved_values:
            arguments.append(("kept", writer.saved_values.index(name), False))
        else:
            return None
    taken = {index for source, index, _ in arguments if source == "gradient"}
    if not taken:
        return None
    return RuleFacts(
        function=step.rule.function,
        keywords=None if step.rule.is_positional else tuple(step.rule.names),
        arguments=tuple(arguments),
        inputs=tuple(map(inputs.index, step.reader.inputs)),
        names=step.reader.inputs,
        unnamed=tuple(outputs.index(name) for name in program.plan.unnamed_results),
        is_once_differentiable=step.rule.is_once_differentiable,
        read=partial(_read, program, step),
        note=step.note,
    )


def _read(program: Program, step: Step, result: Any) -> tuple[Any, ...]:
    """Return the gradients in a result that is neither a tuple nor a dict of them, or raise."""
    running = running_context()
    needed = dict(zip(program.plan.declaration.schema.argument_names, running.needs_input_grad, strict=True))
    needs = {name: needed[name] for name in program.writer.differentiable}
    try:
        return tuple(step.reader.read(result, needs, program.derivatives.known_of(running)).values())
    except Exception as error:
        step.note(error)
        raise


def _fit(program: Program, index: int, gradient: Any) -> Any:
    """Return a gradient that native code found not to fit its input, as the step of its rule makes it; or raise."""
    name = program.plan.declaration.schema.argument_names[index]
    step = next(step for step in program.derivatives.vjp.steps if name in step.reader.inputs)
    running = running_context()
    try:
        return step.reader.one(name, gradient, True, lambda: program.derivatives.known_of(running)[name])
    except Exception as error:
        step.note(error)
        raise


def _context(
    program: Program, names: Sequence[str], node: Any, saved: Any, needs: Any, kept: Any, is_traced: bool
) -> NativeContext:
    context = NativeContext(program.function, node, saved, needs)
    for name, value in zip(names, kept, strict=True):
        setattr(context, f"kept_{name}", value)
    if is_traced:  # Dynamo reads it, and cannot ask the graph
        context.known = program.derivatives.known_of(context)  # type: ignore[attr-defined]  # as on ctx
    return context


def _row(argument: Argument) -> tuple[str, str, bool, bool, type, tuple[Any, ...]]:
    rule, cls = RULES[argument.type.removesuffix("?")]
    given = (default_of(argument, for_dispatcher=False)[1],) if argument.has_default else ()
    keyword = "" if argument.is_positional_only else argument.name
    return keyword, rule, argument.is_optional, argument.is_keyword_only, cls, given


def _pattern(record: OpRecord, values: tuple[Any, ...]) -> tuple[Any, list[torch.Tensor]]:
    """Return the pattern and the tensors of a call, in the order of DirectCallTable.find."""
    schema = record.declaration.schema
    by_name = dict(zip(schema.argument_names, values, strict=True))
    arguments = sorted(schema.tensor_arguments, key=lambda argument: not argument.is_differentiable)
    tensors = [by_name[a.name] for a in arguments if by_name[a.name] is not None]
    optional = [a.name for a in arguments if a.is_optional]
    return tuple(by_name[name] is None for name in optional) if optional else None, tensors


def is_possible(record: OpRecord) -> bool:
    """Return whether calls of an op can be native: plain arguments and outputs, as source/call.cpp knows them."""
    schema = record.declaration.schema
    if adapter_of(record.declaration).has_containers or schema.is_view or schema.is_one_tuple:
        return False
    if not schema.outputs or len(schema.arguments) + len(schema.outputs) > MOST:
        return False
    if any(one.type != "Tensor" or one.alias_of is not None or one.may_be is not None for one in schema.outputs):
        return False
    return bool(schema.tensor_arguments) and all(map(_is_plain, schema.arguments))


def _is_plain(argument: Argument) -> bool:
    has_conversion = argument.to_dispatcher is not None or argument.from_dispatcher is not None
    return argument.type.removesuffix("?") in RULES and not argument.is_variadic and not has_conversion


ALWAYS = 2**64 - 1
_ids = itertools.count(1)
