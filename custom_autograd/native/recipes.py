"""Recipe: what native code holds about the nodes of an op, and what it calls in Python for the rest."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from custom_autograd.execution.context import SIMPLE, Context, SavedValues, check_saved, pack
from custom_autograd.execution.generated import GeneratedOp
from custom_autograd.execution.node_facts import label_of_nodes, name_of_nodes
from custom_autograd.execution.plan import SAVED_VALUES
from custom_autograd.torch_private.compiler import trace_backward
from custom_autograd.torch_private.functions import NativeContext, running_context
from custom_autograd.torch_private.nodes import needed_gradients
from custom_autograd.values.kernel_results import NO_LIST, SINGLE, Layout, restore


@dataclass(frozen=True, slots=True)
class DropInFacts:
    """Facts for native code about rules that see a ctx.

    Attributes:
        function: the backward: ctx, gradients -> a gradient for each input.
        setup: ctx, inputs, output -> None; or None.
        simple: types of attributes of ctx that cannot hold a tensor.
        pack: attributes, saved tensors, materializes -> all tensors, the saved values of the rest.
        forbid_following: saved tensors, inputs, outputs -> the tensors that are saved.
        check_saved: raises for what cannot be saved.
        read: makes a tuple of one gradient per input of anything else that the backward returned, or raises.
        note: adds a note to an error that a rule raised.
    """

    function: Any
    setup: Any
    simple: tuple[type, ...]
    pack: Any
    forbid_following: Any
    check_saved: Any
    read: Any
    note: Any


def drop_in_facts_of(recording: GeneratedOp, forget: Callable[[], None]) -> DropInFacts | None:
    """Return facts for native code about rules that see a ctx, or None if the op has none."""
    if recording.plan.drop_in is None or recording.has_wrapped_backward:
        return None
    drop_in = recording.derivatives.drop_in
    assert drop_in is not None  # the plan has one
    helpers = drop_in.helpers()
    return DropInFacts(
        function=helpers["rule_0"],
        setup=helpers.get("setup"),
        simple=tuple(SIMPLE),
        pack=partial(_pack, recording, forget),
        forbid_following=drop_in.forbid_following,
        check_saved=check_saved,
        read=drop_in.in_order,
        note=helpers["note_0"],
    )


# NOTE [attributes of ctx that Python's collector must see]
# A native node keeps attributes of ctx where the collector does not see them, and an object among them may lead back to
# the node: the graph would never be freed. So the calls of an op whose setup_context keeps such objects, or tensors as
# attributes, record nodes of Python from then on.
def _pack(
    recording: GeneratedOp,
    forget: Callable[[], None],
    attributes: Mapping[str, Any],
    saved: tuple[Tensor | None, ...],
    materializes: bool,  # native code passes it
) -> tuple[tuple[Tensor | None, ...], SavedValues]:
    """Return all tensors that a ctx holds, and the rest; Any: whatever the user keeps."""
    recording.keeps_objects = True
    forget()
    context = Context(())
    vars(context).update(attributes)
    context.custom_autograd_saved, context.custom_autograd_materializes = saved, materializes
    return pack(context)


def set_attributes(
    context: Any,
    attributes: dict[str, Any] | None,
    packed: SavedValues | None,
    count: int,
    materializes: bool,  # native code passes it
) -> None:
    """Set what a drop-in setup_context kept (Any: of any type) on a ctx."""
    values = packed or SavedValues(attributes or {}, (), None, count, materializes)
    setattr(context, SAVED_VALUES, values)
    for name, value in (attributes or {}).items():
        if not hasattr(context, name):
            setattr(context, name, value)


ALWAYS = 2**64 - 1
_ids = itertools.count(1)


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
        uncovered: the inputs whose gradients the reference computes.
        is_once_differentiable: it is not to be recorded.
    """

    function: Any
    keywords: tuple[str, ...] | None
    arguments: tuple[tuple[str, int, bool], ...]
    inputs: tuple[int, ...]
    names: tuple[str, ...]
    unnamed: tuple[int, ...]
    uncovered: tuple[int, ...]
    is_once_differentiable: bool


class RecordedFacts(NamedTuple):
    """Facts for native code about the nodes of an op.

    Attributes:
        id: a number that no other rules have, by which compiled autograd recognises a graph.
        name: of the nodes.
        is_checked: gradients are compared with their inputs.
        saved: (is an output, index, inputs for whose gradients it is saved as bits, name) of each saved tensor.
        kept: the inputs that are kept and are not tensors.
        drop_in: the rules of `register_autograd`, or None.
    """

    id: int
    name: str
    is_checked: bool
    saved: tuple[tuple[bool, int, int, str], ...]
    kept: tuple[int, ...]
    drop_in: DropInFacts | None


class Recipe:
    """What the native nodes of an op save and run: native code calls it for what it does not do itself.

    Attributes:
        generated: what they are generated from.
        facts: what native code reads when it records the first node; it asks for the rest when it needs it.
    """

    def __init__(self, generated: GeneratedOp, forget: Callable[[], None]) -> None:
        """Make the recipe."""
        self.generated, plan = generated, generated.plan
        # A drop-in rule saves by position; what is named is for the jvp of a call in forward mode, which is not native.
        self._named = list(plan.saved) if plan.drop_in is None else []
        schema = plan.declaration.schema
        inputs, outputs, tensors = schema.argument_names, schema.output_names, schema.tensor_names
        saved, kept = [], []
        for name in self._named:
            if name not in tensors:
                kept.append(inputs.index(name))
                continue
            always = plan.is_always_saved(name)
            users = ALWAYS if always else sum(1 << inputs.index(user) for user in plan.saved[name])
            is_output = name not in inputs
            saved.append((is_output, (outputs if is_output else inputs).index(name), users, name))
        self._tensors = [name for _, _, _, name in saved]
        drop_in, name = drop_in_facts_of(self.generated, forget), name_of_nodes(plan.declaration)
        self.facts = RecordedFacts(next(_ids), name, self.generated.is_checked, tuple(saved), tuple(kept), drop_in)

    @property
    def label(self) -> str:
        """Return what the text of a node says of its op."""
        return label_of_nodes(self.generated.plan.declaration)

    @property
    def kept_names(self) -> tuple[str, ...]:
        """Return the names of the inputs that are kept and are not tensors."""
        return tuple([name for name in self._named if name not in self._tensors])

    def backward(self) -> BackwardFacts:
        """Return facts about the backward; asked for once, when it first runs."""
        quick = self.generated.recording.native_quick if self.generated.has_native_quick else None
        return BackwardFacts(quick, self._sole_rule())

    def _sole_rule(self) -> RuleFacts | None:
        """Return the one rule of an op, if native code can call it by itself."""
        rule, plan, tensors = self.generated.sole_rule, self.generated.plan, self._tensors
        if rule is None:
            return None
        schema = plan.declaration.schema
        inputs, outputs, results = schema.argument_names, schema.output_names, schema.results_by_grad
        names = rule.inputs or schema.differentiable_names
        arguments = []
        for name in rule.names:
            if name in results:
                arguments.append(("gradient", outputs.index(results[name]), rule.fills(name)))
            elif name in tensors:
                arguments.append(("saved", tensors.index(name), False))
            else:
                arguments.append(("kept", self.kept_names.index(name), False))
        keywords = None if rule.is_positional else tuple(rule.names)
        unnamed = tuple(map(outputs.index, plan.unnamed_results))
        uncovered = tuple(map(inputs.index, plan.uncovered))
        order = tuple(map(inputs.index, names))
        is_once = rule.is_once_differentiable
        return RuleFacts(rule.function, keywords, tuple(arguments), order, names, unnamed, uncovered, is_once)

    def general(self, context: NativeContext, *gradients: Any) -> Any:  # Any: tensors, lists, None
        """Run the backward of the Function: a gradient for each input."""
        return self.generated.recording.function.backward(context, *gradients)

    def read(self, result: Any) -> tuple[Any, ...]:
        """Return the gradients in a result of the one rule that is neither a tuple nor a dict of them, or raise."""
        recording, running = self.generated, running_context()
        needs, known = _needs_of(recording, running), recording.derivatives.known_of(running)
        step = recording.derivatives.vjp.steps[0]
        return tuple(step.noting(step.reader.read)(result, needs, known).values())

    def note(self, error: BaseException) -> None:
        """Note on an exception that it came from the one rule."""
        self.generated.derivatives.vjp.steps[0].note(error)

    def fit(self, index: int, gradient: Any) -> Any:
        """Return a gradient that native code found not to fit its input, as the step of its rule makes it; or raise."""
        recording, running = self.generated, running_context()
        name = self.generated.plan.declaration.schema.argument_names[index]
        step = next(step for step in recording.derivatives.vjp.steps if name in step.reader.inputs)
        need = _needs_of(recording, running)[name]
        return step.noting(step.reader.one)(name, gradient, need, lambda: recording.derivatives.known_of(running)[name])

    def context(
        self,
        node: Any,
        saved: Any,
        needs: Any,
        lengths: tuple[tuple[int, ...], tuple[int, ...]] | None,
        kept: Any,
        is_traced: bool,  # native code passes it
    ) -> NativeContext:
        """Return a ctx for a node."""
        recording = self.generated
        context: Any = NativeContext(self.generated.recording.function, node, saved, needs)
        if lengths is not None:
            schema, writer = self.generated.plan.declaration.schema, recording.writer
            are_lists = [argument.is_tensor_list for argument in schema.arguments]
            context.layout = Layout(list(map(_length, lengths[0], are_lists)))
            context.layout.outputs = [SINGLE] * len(schema.outputs)
            if writer.saves_lists():
                context.saved_lengths = list(map(_length, lengths[1], map(writer.is_list, writer.saved_tensors)))
        if self.generated.plan.drop_in is not None:
            set_attributes(context, *kept)
        else:
            for name, value in zip(self.kept_names, kept, strict=True):
                setattr(context, f"kept_{name}", value)
        if is_traced:  # Dynamo reads it, and cannot ask the graph
            context.known = recording.derivatives.known_of(context)
        return context  # type: ignore[no-any-return]  # it is one

    trace = staticmethod(trace_backward)


def _needs_of(recording: GeneratedOp, context: NativeContext) -> dict[str, Any]:
    """Return, by differentiable input, whether its gradient is needed; a list of bools for a list."""
    schema = recording.plan.declaration.schema
    needed: Sequence[Any] = needed_gradients(context)  # Any: bools, or lists of those
    if schema.has_lists:
        needed = restore(needed[1:], context.layout.inputs)  # type: ignore[attr-defined]  # as on ctx
    found = dict(zip(schema.argument_names, needed, strict=True))
    return {name: found[name] for name in schema.differentiable_names}


def _length(count: int, is_list: bool) -> int:
    if not is_list:
        return SINGLE
    return NO_LIST if count < 0 else count
