"""The generated code that records calls as nodes, the functions that its source calls, and facts about both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.autograd.function import Function

from custom_autograd.core.lazy import Lazy, Once
from custom_autograd.core.metadata import metadata_of
from custom_autograd.execution import call, gradients
from custom_autograd.execution.derivatives import Derivatives, output_metadata
from custom_autograd.execution.function import FunctionWriter
from custom_autograd.execution.kernel_code import shared_names
from custom_autograd.execution.named_saving import NamedSaving, note_saved
from custom_autograd.execution.node import NodeWriter
from custom_autograd.execution.node_facts import describe_nodes
from custom_autograd.execution.plan import Plan, plan_of, sole_rule_of, why_not
from custom_autograd.execution.source import Source, compile_source, named, values_of
from custom_autograd.execution.vjp import Step
from custom_autograd.registration.capability import Capability, overriding
from custom_autograd.registration.dispatcher_library import enclosed, opened
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import GradientRule
from custom_autograd.torch_private import dispatch, functions, nodes, transforms
from custom_autograd.torch_private.functions import Running
from custom_autograd.values import kernel_results, tensors
from custom_autograd.values.user_code import Named, note_rule

Backward = Callable[..., Any]  # Any: takes a ctx and gradients, or what a ctx would hold


# NOTE [one kind of nodes]
# A call that goes through the dispatcher, as the first one may, records a node of the Function. Later ones may record a
# native one. Compiled autograd compiles a graph again for nodes of another class: once it has met those of the
# Function, they are recorded from then on.
class RecordingFacts:
    """Facts about the nodes of one op, at a level of validation.

    Attributes:
        is_checked: the results of kernels and rules are looked at.
        keeps_dispatcher: calls that record a node go through the dispatcher.
        keeps_objects: some setup_context has kept tensors or objects as attributes of ctx, which native nodes cannot.
        lock: the lock of the op, held while a part is made.
    """

    def __init__(self, record: OpRecord, level: str) -> None:
        self._record, self.lock = record, record.lock
        self.is_checked, self._is_strict = level != "off", level == "full"
        self.keeps_dispatcher = self.keeps_objects = False

    @Once
    def plan(self) -> Plan:
        """Return where each derivative comes from, and what is saved for it."""
        return plan_of(self._record)

    @Once
    def _reason(self) -> str | None:
        """Return why native code cannot record calls, as far as the rules show; or None."""
        return why_not(self.plan, is_strict=self._is_strict)

    @property
    def has_native_node(self) -> bool:
        """Return True if native code can record calls."""
        return self._reason is None and not self.keeps_objects

    @Lazy
    def has_wrapped_backward(self) -> bool:
        """Whether a capability puts something around the backward."""
        return self.around_backward(_no_backward) is not _no_backward

    @Lazy
    def sole_rule(self) -> GradientRule | None:
        """The rule that native nodes call by themselves, or None."""
        return None if self.has_wrapped_backward else sole_rule_of(self.plan)

    @property
    def has_native_quick(self) -> bool:
        """Return True if native nodes need a quick backward of their own, for some calls at least."""
        plan = self.plan
        is_by_name = plan.drop_in is None and not plan.declaration.schema.has_lists
        is_alone = self.sole_rule is not None and len(plan.named_grads) == 1 and not plan.uncovered
        return self.has_native_node and is_by_name and not is_alone

    @property
    def has_native_backward(self) -> bool:
        """Return True if native nodes can run a backward: for lists or a ctx, only the one rule as it is."""
        if self.plan.drop_in is not None:
            return not self.has_wrapped_backward
        return not self.plan.declaration.schema.has_lists or self.sole_rule is not None

    @Once
    def writer(self) -> FunctionWriter:
        """A writer of the Function, to be asked only: it writes nothing."""
        return FunctionWriter(Source.of(self._record.declaration), self.plan)

    def new_writer(self) -> NodeWriter:
        """Return a writer of the Function and its nodes, with a new text.

        An exception may come while it writes, from a signal or where the stack ends: the next attempt starts again.
        """
        return NodeWriter(
            Source.of(self._record.declaration),
            self.plan,
            is_checked=self.is_checked,
            is_strict=self._is_strict,
            has_native_quick=self.has_native_quick,
        )

    @Once
    def derivatives(self) -> Derivatives:
        """What the Function calls."""
        return Derivatives(self.plan, is_checked=self.is_checked, is_strict=self._is_strict)

    def why_no_native_node(self) -> str | None:
        """Return why native code cannot record calls of the op, or None."""
        if self._reason is None and self.keeps_objects:
            return "setup_context keeps tensors or objects as attributes of ctx"
        if self._reason is None and not self.has_native_backward:
            return "the op has lists and not one rule that takes only gradients and what is saved, or autocast policies"
        return self._reason

    def around_backward(self, backward: Backward) -> Backward:
        """Return what runs in place of a backward: what capabilities put around it."""
        for capability in overriding(self._record.capabilities, Capability.around_backward):
            backward = capability.around_backward(self._record, backward)
        return backward

    def keep_dispatcher(self) -> None:
        """Note that compiled autograd has met a node of the Function."""
        self.keeps_dispatcher = True


def _no_backward(*_: object) -> None:
    """Return nothing, in place of a backward, to see whether a capability wraps it."""


# Calls an op below its Autograd key: see NOTE [why forward re-enables grad mode] in function.py.
#
# NOTE [one event per call]
# Profilers record every call that enters the dispatcher, and none that continues there. So the Autograd kernel leaves
# the keys that remain for the `forward` that it runs next in this thread, which continues at those. Under a transform,
# and where AOTAutograd traces, the call enters the dispatcher again: the next level has to start from the top.


def below(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:  # Any: what the op takes and returns
    """Call a function of tensors as if there were no Autograd kernels at this level."""
    with dispatch.below_autograd():
        if transforms.is_transforming():
            with torch.enable_grad(), transforms.forward_mode_enabled(True):
                return function(*args, **kwargs)
        if dispatch.is_functionalizing():
            with torch.enable_grad():
                return function(*args, **kwargs)
        return function(*args, **kwargs)


class Remaining(threading.local):
    """The keys that remain of the call whose `forward` runs next in this thread, and whether any tensor is odd."""

    keys: Any = (None, True)  # Any: DispatchKeySet has no public type


remaining = Remaining()


class RecordingCode:
    """The autograd.Function of one op, and what records its nodes.

    Attributes:
        source: the text.
        function: the autograd.Function.
        apply: runs a call below autograd and records its node.
        apply_under_transforms: the same under a transform of torch.func.
        quick: the quick backward of nodes of Python; None if there is none.
        native_quick: the quick backward of native nodes, which takes what a ctx would hold; None if they need none.
    """

    def __init__(self, record: OpRecord, facts: RecordingFacts) -> None:
        declaration, plan = record.declaration, facts.plan
        writer = facts.new_writer()
        source = writer.source
        writer.write()
        self.source = source.text
        values = {**_helpers(record, facts.derivatives), **values_of(declaration)}
        namespace = compile_source(self.source, record.name, source.namespace(values))
        self.function: type[Function] = namespace[declaration.name.name]
        describe_nodes(record, writer, self.function)
        quick: Callable[..., Any] | None = namespace.get(source.own("quick"))
        native_quick: Callable[..., Any] | None = namespace.get(source.own("native_quick"))
        self.native_quick = None if native_quick is None else facts.around_backward(native_quick)
        if plan.is_differentiable:
            self.function.backward = staticmethod(facts.around_backward(self.function.backward))
            namespace[source.own("backward")] = self.function.backward
        self.quick = None if quick is None else facts.around_backward(quick)
        if self.quick is not None:
            # Under torch.func, too: both ways to apply share the class of nodes. Compiled autograd takes `backward`.
            nodes.run_in_backward(self.function, self.quick)
        functions.call_when_compiled(self.function, facts.keep_dispatcher)
        record_node = namespace.get(source.own("record"))
        self.apply = self.apply_under_transforms = _refuse_instance
        if record_node is not None:
            applies = map(
                NamedSaving(declaration, plan.saving).around, functions.applies(self.function, forward=record_node)
            )
            self.apply, self.apply_under_transforms = applies
        _name(self.function, record)


def _name(function: type[Function], record: OpRecord) -> None:
    """Give a Function the name that it is pickled by, and what it says when it is called."""
    declared = record.declaration.function
    function.__module__ = declared.__module__
    function.__qualname__ = f"{getattr(declared, '__qualname__', '')}.function"
    function.__new__ = _refuse_instance  # type: ignore[method-assign,assignment]  # it makes none
    if record.declaration.schema.is_one_tuple:
        function.apply = staticmethod(enclosed(record.declaration.schema, function.apply))  # type: ignore[method-assign]  # as generated


def common_names(record: OpRecord) -> dict[str, Any]:
    """Return what the source of nodes calls, and that of the Autograd kernel (Any: functions of any signature)."""
    return {
        **shared_names(),
        **call.NAMES,
        **named(below, kernel_results.Layout, tensors.plain, tensors.tensors_in),
        "overload": opened(record),
        "redispatch": dispatch.redispatcher(opened(record)),
        "remaining": remaining,
        "flatten_lists": kernel_results.flatten,
        "restore_lists": kernel_results.restore,
    }


def _helpers(record: OpRecord, derivatives: Derivatives) -> dict[str, Any]:
    """Return what the source calls (Any: as above, here and below)."""
    found = {**common_names(record), **_forward_helpers(derivatives), **_backward_helpers(derivatives)}
    for index, step in enumerate(derivatives.vjp.steps):
        found.update(_rule_helpers(index, step, derivatives))
    if derivatives.drop_in is not None:
        found.update(derivatives.drop_in.helpers())
    return found


def _forward_helpers(derivatives: Derivatives) -> dict[str, Any]:
    return {
        **named(dispatch.is_functionalizing, transforms.has_forward_transform, transforms.find_tangents, has_tangent),
        **named(tensors.are_odd, tensors.without_bases, tensors.all_floating, tensors.any_floating, tensors.copies),
        **named(note_saved, metadata_of, derivatives.check_hidden),
        "NONE_LEFT": remaining.keys,
        "levels_below": derivatives.below,
        "below_autograd": dispatch.below_autograd,
        "strided": torch.strided,
        "drop_in": derivatives.drop_in,
    }


def _backward_helpers(derivatives: Derivatives) -> dict[str, Any]:
    return {
        **named(transforms.primal_of, output_metadata, functions.free_saved, nodes.needed_gradients, Named),
        **named(tensors.is_wanted, tensors.materialize, tensors.first_tensor, flatten_gradients),
        **named(kernel_results.are_plain, kernel_results.is_undefined, gradients.are_fit, gradients.has_needed),
        **named(derivatives.known_of),
        "backward_of": derivatives.backward,
        "jvp_of": derivatives.jvp,
        **_jvp_helpers(derivatives),
        "running": Running(),
        "FunctionType": FunctionType,
        "is_whole_backward": nodes.is_whole_backward,
    }


def _jvp_helpers(derivatives: Derivatives) -> dict[str, Any]:
    """Return what the quick jvp calls; what computes tangents is loaded for the first one."""
    rule = derivatives.plan.jvp
    if rule is None:
        return {}

    def note(error: Exception, given: Mapping[str, Any]) -> None:
        note_rule(error, str(derivatives.plan.declaration.name), rule)
        derivatives.tangents.note_absent(error, given)

    return {
        "jvp_rule": rule.function,
        "note_jvp": note,
        "read_tangent": lambda found, like, given: derivatives.tangents.read_one(found, like, given),
    }


def _rule_helpers(index: int, step: Step, derivatives: Derivatives) -> dict[str, Any]:
    """Return what the quick backward calls for one rule."""
    reader = step.reader

    def read(ctx: Any, result: Any, needs: Mapping[str, Any]) -> list[Any]:
        return list(reader.read(result, needs, derivatives.known_of(ctx)).values())

    def check(ctx: Any, name: str, gradient: Any, need: Any) -> Any:
        return reader.one(name, gradient, need, lambda: derivatives.known_of(ctx)[name])

    return {
        f"rule_{index}": step.rule.function,
        f"note_{index}": step.note,
        f"read_{index}": read,
        f"check_{index}": check,
        f"names_{index}": frozenset(reader.inputs),
    }


def has_tangent(*values: Any) -> bool:  # Any: tensors, lists of tensors, or None
    """Return True if forward mode will ask for a tangent right after forward."""
    return transforms.is_forward_mode() and any(map(transforms.has_tangent, tensors.tensors_in(values)))


def flatten_gradients(values: Sequence[Any], lengths: Sequence[int]) -> tuple[Any, ...]:  # Any: gradients
    """Return gradients in the order of the flat inputs; None for a whole list is None for each element."""
    flat: list[Any] = []
    for value, length in zip(values, lengths, strict=True):
        if length >= 0:
            flat += [None] * length if value is None else list(value)
        elif length == -1:
            flat.append(value)
    return tuple(flat)


def _refuse_instance(cls: type, *args: object, **kwargs: object) -> object:
    raise TypeError(f"{cls.__name__} is not to be instantiated or called: call the op, or {cls.__name__}.apply(...)")
