"""Facts about the nodes of an op for native code, and the functions of Python that it calls for the rest."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from custom_autograd.autograd.node_facts import label_of_nodes, name_of_nodes
from custom_autograd.dispatch.generated import GeneratedOp
from custom_autograd.dispatch.recording_facts import RecordingFacts
from custom_autograd.native.context_facts import DropInFacts, drop_in_facts_of, set_attributes
from custom_autograd.torch_private.compiled_backward import trace_backward
from custom_autograd.torch_private.edges import needed_gradients
from custom_autograd.torch_private.native_context import NativeContext, running_context
from custom_autograd.values.lists import NO_LIST, SINGLE, Layout, restore

ALWAYS = 2**64 - 1
_ids = itertools.count(1)


# NamedTuples: an op makes three of these in its first call and its first backward, and dataclasses take longer.
class RecipeFacts(NamedTuple):
    """Facts for native code about the nodes of an op, as far as a call needs them.

    Attributes:
        id: a number that no other rules have, by which compiled autograd recognises a graph.
        name: of the nodes.
        label: what the text of a node says of its op.
        is_checked: gradients are compared with their inputs.
        list_inputs: by input, whether it is a list of tensors, as 0 and 1.
        differentiable_inputs: by input, whether it may carry a gradient, as 0 and 1.
        differentiable_outputs: the same by output.
        saved: (is an output, index, inputs for whose gradients it is saved as bits, name) of each saved tensor.
        kept: the inputs that are kept and are not tensors.
        kept_names: their names.
        backward: returns facts about the backward; asked for once, when it first runs.
        general: the backward of the Function: ctx, gradients -> a gradient for each input.
        fit: input, gradient -> the gradient as it may be returned, or an error.
        context: node, saved, needs, lengths of lists, kept, is traced -> a ctx.
        trace: records a backward in compiled autograd.
        drop_in: the rules of `register_autograd`, or None.
    """

    id: int
    name: str
    label: str
    is_checked: bool
    list_inputs: tuple[int, ...]
    differentiable_inputs: tuple[int, ...]
    differentiable_outputs: tuple[int, ...]
    saved: tuple[tuple[bool, int, int, str], ...]
    kept: tuple[int, ...]
    kept_names: tuple[str, ...]
    backward: Callable[[], BackwardFacts]
    general: Any
    fit: Any
    context: Any
    trace: Any
    drop_in: DropInFacts | None


class BackwardFacts(NamedTuple):
    """Facts for native code about the backward of an op with rules bound by name.

    Attributes:
        quick: the quick backward: gradients, saved, needs, kept -> a gradient for each input, or NotImplemented; None
            for an op whose one rule is called without it.
        rule: the one rule of the op where it can be called without the quick backward, or None.
    """

    quick: Any
    rule: RuleFacts | None


class RuleFacts(NamedTuple):
    """Facts for native code about the one rule of an op.

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


def facts_of(generated: GeneratedOp, forget: Callable[[], None]) -> RecipeFacts:
    """Return facts for native code about the nodes of an op.

    Args:
        generated: the generated code of the op, of which most native nodes need none.
        forget: forgets all native calls of the op.
    """
    recording = generated.recording_facts
    plan, schema = recording.plan, recording.plan.declaration.schema
    inputs, outputs, kept = schema.argument_names, schema.output_names, plan.saved_values
    saved = []
    for name in plan.saved_tensors:
        is_output = name not in inputs
        index = outputs.index(name) if is_output else inputs.index(name)
        users = ALWAYS if plan.is_always_saved(name) else sum(1 << inputs.index(user) for user in plan.saved[name])
        saved.append((is_output, index, users, name))
    return RecipeFacts(
        id=next(_ids),
        name=name_of_nodes(plan.declaration),
        label=label_of_nodes(plan.declaration),
        is_checked=recording.is_checked,
        list_inputs=tuple([int(argument.is_tensor_list) for argument in schema.arguments]),
        differentiable_inputs=tuple([int(argument.is_differentiable) for argument in schema.arguments]),
        differentiable_outputs=tuple([int(output.is_differentiable) for output in schema.outputs]),
        saved=tuple(saved),
        kept=tuple([inputs.index(name) for name in kept]),
        kept_names=tuple(kept),
        backward=partial(_backward_facts, generated),
        general=partial(_general, generated),
        fit=partial(_fit, recording),
        context=partial(_context, generated, kept),
        trace=trace_backward,
        drop_in=drop_in_facts_of(recording, forget),
    )


def _backward_facts(generated: GeneratedOp) -> BackwardFacts:
    recording = generated.recording_facts
    quick = generated.recording.native_quick if recording.has_native_quick else None
    return BackwardFacts(quick, _sole_rule_of(recording))


def _general(generated: GeneratedOp, context: NativeContext, *gradients: Any) -> Any:  # Any: tensors, lists, None
    """Run the backward of the Function."""
    return generated.recording.function.backward(context, *gradients)


def _sole_rule_of(recording: RecordingFacts) -> RuleFacts | None:
    """Return the one rule of an op, if native code can call it by itself."""
    rule, plan = recording.sole_rule, recording.plan
    if rule is None:
        return None
    schema, tensors = plan.declaration.schema, plan.saved_tensors
    inputs, outputs, results = schema.argument_names, schema.output_names, schema.results_by_grad
    names = rule.inputs or schema.differentiable_names
    arguments = []
    for name in rule.names:
        if name in results:
            arguments.append(("gradient", outputs.index(results[name]), rule.fills(name)))
        elif name in tensors:
            arguments.append(("saved", tensors.index(name), False))
        else:
            arguments.append(("kept", plan.saved_values.index(name), False))
    return RuleFacts(
        function=rule.function,
        keywords=None if rule.is_positional else tuple(rule.names),
        arguments=tuple(arguments),
        inputs=tuple(map(inputs.index, names)),
        names=names,
        unnamed=tuple(outputs.index(name) for name in recording.plan.unnamed_results),
        is_once_differentiable=rule.is_once_differentiable,
        read=partial(_read, recording),
        note=partial(_note, recording),
    )


def _read(recording: RecordingFacts, result: Any) -> tuple[Any, ...]:
    """Return the gradients in a result that is neither a tuple nor a dict of them, or raise."""
    running = running_context()
    needs, known = _needs_of(recording, running), recording.derivatives.known_of(running)
    return tuple(recording.derivatives.vjp.steps[0].read(result, needs, known).values())


def _note(recording: RecordingFacts, error: BaseException) -> None:
    """Note on an exception that it came from the one rule."""
    recording.derivatives.vjp.steps[0].note(error)


def _fit(recording: RecordingFacts, index: int, gradient: Any) -> Any:
    """Return a gradient that native code found not to fit its input, as the step of its rule makes it; or raise."""
    name = recording.plan.declaration.schema.argument_names[index]
    step = next(step for step in recording.derivatives.vjp.steps if name in step.reader.inputs)
    running = running_context()
    need = _needs_of(recording, running)[name]
    return step.noting(step.reader.one)(name, gradient, need, lambda: recording.derivatives.known_of(running)[name])


def _needs_of(recording: RecordingFacts, context: NativeContext) -> dict[str, Any]:
    """Return, by differentiable input, whether its gradient is needed; a list of bools for a list."""
    needed: Sequence[Any] = needed_gradients(context)  # Any: bools, or lists of those
    if recording.writer.has_lists:
        needed = restore(needed[1:], context.layout.inputs)  # type: ignore[attr-defined]  # as on ctx
    found = dict(zip(recording.plan.declaration.schema.argument_names, needed, strict=True))
    return {name: found[name] for name in recording.writer.differentiable}


def _context(
    generated: GeneratedOp,
    names: Sequence[str],
    node: Any,
    saved: Any,
    needs: Any,
    lengths: tuple[tuple[int, ...], tuple[int, ...]] | None,
    kept: Any,
    is_traced: bool,
) -> NativeContext:
    context: Any = NativeContext(generated.recording.function, node, saved, needs)
    recording = generated.recording_facts
    if lengths is not None:
        schema, writer = recording.plan.declaration.schema, recording.writer
        are_lists = [argument.is_tensor_list for argument in schema.arguments]
        context.layout = Layout(list(map(_length, lengths[0], are_lists)))
        context.layout.outputs = [SINGLE] * len(schema.outputs)
        if writer.saves_lists():
            context.saved_lengths = list(map(_length, lengths[1], map(writer.is_list, writer.saved_tensors)))
    if recording.derivatives.drop_in is not None:
        set_attributes(context, *kept)
    else:
        for name, value in zip(names, kept, strict=True):
            setattr(context, f"kept_{name}", value)
    if is_traced:  # Dynamo reads it, and cannot ask the graph
        context.known = recording.derivatives.known_of(context)
    return context  # type: ignore[no-any-return]  # it is one


def _length(count: int, is_list: bool) -> int:
    if not is_list:
        return SINGLE
    return NO_LIST if count < 0 else count
