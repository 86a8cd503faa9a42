"""RecordingCode: the generated code that records calls as nodes, and the functions that its source calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.autograd.function import Function

from custom_autograd.autograd import gradients
from custom_autograd.autograd.derivatives import Derivatives, output_metadata
from custom_autograd.autograd.named_saving import NamedSaving, note_saved
from custom_autograd.autograd.node_facts import describe_nodes
from custom_autograd.autograd.vjp import Step
from custom_autograd.calls.parameters import values_of
from custom_autograd.calls.source import compile_source
from custom_autograd.dispatch import sharing
from custom_autograd.dispatch.below import below, remaining
from custom_autograd.dispatch.names_in_source import shared_names
from custom_autograd.dispatch.recording_facts import RecordingFacts
from custom_autograd.registration.one_tuple import enclosed, opened
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private import dispatch, edges, functions, modes, transforms
from custom_autograd.torch_private.native_context import Running
from custom_autograd.values import lists, tensors
from custom_autograd.values.named import Named
from custom_autograd.values.user_code import note_rule


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
        writer, node = facts.new_writers()
        source = writer.source
        writer.write()
        if plan.is_differentiable:
            source.lines("", "")
            node.write()
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
            edges.run_in_backward(self.function, self.quick)
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


def _helpers(record: OpRecord, derivatives: Derivatives) -> dict[str, Any]:
    """Return what the source calls (Any: functions of any signature, here and below)."""
    found = {**shared_names(), **_forward_helpers(record, derivatives), **_backward_helpers(derivatives)}
    for index, step in enumerate(derivatives.vjp.steps):
        found.update(_rule_helpers(index, step, derivatives))
    if derivatives.drop_in is not None:
        found.update(derivatives.drop_in.helpers())
    return found


def _forward_helpers(record: OpRecord, derivatives: Derivatives) -> dict[str, Any]:
    return {
        "overload": opened(record),
        "below": below,
        **sharing.NAMES,
        "remaining": remaining,
        "NONE_LEFT": remaining.keys,
        "is_functionalizing": modes.is_functionalizing,
        "below_autograd": dispatch.below_autograd,
        "redispatch": dispatch.redispatcher(opened(record)),
        "strided": torch.strided,
        "are_odd": tensors.are_odd,
        "has_forward_transform": transforms.has_forward_transform,
        "find_tangents": transforms.find_tangents,
        "without_bases": tensors.without_bases,
        "has_tangent": has_tangent,
        "note_saved": note_saved,
        "known": tensors.known,
        "tensors_in": tensors.tensors_in,
        "all_floating": tensors.all_floating,
        "any_floating": tensors.any_floating,
        "copies": tensors.copies,
        "flatten_lists": lists.flatten,
        "Layout": lists.Layout,
        "drop_in": derivatives.drop_in,
        "check_hidden": derivatives.check_hidden,
    }


def _backward_helpers(derivatives: Derivatives) -> dict[str, Any]:
    return {
        "backward_of": derivatives.backward,
        "jvp_of": derivatives.jvp,
        "primal_of": transforms.primal_of,
        **_jvp_helpers(derivatives),
        "output_metadata": output_metadata,
        "free_saved": functions.free_saved,
        "running": Running(),
        "known_of": derivatives.known_of,
        "FunctionType": FunctionType,
        "plain": tensors.plain,
        "is_wanted": tensors.is_wanted,
        "zeros_of": tensors.zeros_of,
        "first_tensor": tensors.first_tensor,
        "are_plain": lists.are_plain,
        "is_undefined": lists.is_undefined,
        "is_whole_backward": edges.is_whole_backward,
        "needed_gradients": edges.needed_gradients,
        "are_fit": gradients.are_fit,
        "has_needed": gradients.has_needed,
        "Named": Named,
        "restore_lists": lists.restore,
        "flatten_gradients": flatten_gradients,
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
