"""GeneratedOp: everything that is generated for one op, and the small functions that its source calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

from torch import Tensor
from torch.autograd.function import Function

from custom_autograd.autograd import gradients
from custom_autograd.autograd.derivatives import Derivatives, output_metadata
from custom_autograd.autograd.function import FunctionWriter
from custom_autograd.autograd.named_saving import NamedSaving, note_saved
from custom_autograd.autograd.node import NodeWriter
from custom_autograd.autograd.node_facts import describe_nodes
from custom_autograd.autograd.plan import Plan, make_plan
from custom_autograd.autograd.vjp import Step
from custom_autograd.calls.parameters import conversions, defaults, own_names
from custom_autograd.calls.source import Source, compile_source
from custom_autograd.calls.watching import Watcher
from custom_autograd.dispatch import direct_source as direct
from custom_autograd.dispatch.around_kernels import AroundKernels
from custom_autograd.dispatch.autograd_key import AutogradWriter
from custom_autograd.dispatch.below import below, continue_below, leave_keys
from custom_autograd.dispatch.call import call_source, write_kernel
from custom_autograd.dispatch.recorders import Recorders
from custom_autograd.dispatch.write_refusals import refuse_if_tracked, refuse_leaves
from custom_autograd.registration.choice import Choice
from custom_autograd.registration.one_tuple import enclosed, opened
from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.lookup import described_op
from custom_autograd.torch_private import dispatch, edges, functions, transforms
from custom_autograd.torch_private.native_context import Running
from custom_autograd.values import lists, overlap, tensors, validation
from custom_autograd.values.named import Named
from custom_autograd.values.results import ResultReader, Share


class GeneratedOp:
    """Code generated for an op from its schema and its rules.

    Attributes:
        source: the text.
        plan: what it follows.
        function: the autograd.Function.
        autograd: the kernel at the Autograd key: (keyset, *args, **kwargs).
        kernel: the kernel at a backend's key: (device, *args, **kwargs).
        watch: makes a kernel one whose every call is checked in full.
        is_checked: the results of kernels and rules are looked at.
        is_recording: calls may record a node.
        native_quick: the quick backward of native nodes, which takes what a ctx would hold; None if there is none.
        has_native_node: native code can record its calls.
        has_wrapped_backward: a capability has put something around it.
        writer: of the Function, with what its nodes save.
        derivatives: what the Function calls.
        is_writing: kernels write to inputs.
        recorder: makes, of a kernel, what runs it and records a node, for one kind of call that needs no dispatcher.
    """

    def __init__(self, record: OpRecord, level: str) -> None:
        declaration = record.declaration
        self.plan: Plan = make_plan(record)
        self.is_checked = level != "off"
        self.is_writing = bool(declaration.schema.mutated_arguments)
        self.watch = Watcher(record, compares_contents=level == "full")
        self._is_watched = level == "full"
        self._around_kernel = AroundKernels(record)
        self._kernels = record.kernels
        source, writer, node = _write(self.plan, is_checked=self.is_checked, is_strict=self._is_watched)
        self.source = source.text
        self.is_recording = writer.is_differentiable and not self.is_writing
        derivatives = Derivatives(self.plan, is_checked=self.is_checked, is_strict=self._is_watched)
        values = {**self._helpers(record, derivatives), **_values(record)}
        namespace = compile_source(self.source, record.name, source.namespace(values))
        self.function: type[Function] = namespace[declaration.name.name]
        members = describe_nodes(record, writer, self.function)
        self.autograd: Callable[..., Any] = namespace[source.own("autograd")]
        self.kernel: Callable[..., Any] = namespace[source.own("kernel")]
        saving = NamedSaving(declaration, self.plan.saving)
        namespace[source.own("apply")] = saving.around(functions.direct_apply(self.function))
        self._quick: Callable[..., Any] | None = namespace.get(source.own("quick"))
        quick: Callable[..., Any] | None = namespace.get(source.own("native_quick"))
        self.native_quick = None if quick is None else _around_backward(record, quick)
        self.has_wrapped_backward = _around_backward(record, _no_backward) is not _no_backward
        self.writer, self.derivatives = writer, derivatives
        self.has_native_node = node.has_native
        if writer.is_differentiable:
            self.function.backward = staticmethod(_around_backward(record, self.function.backward))
            namespace[source.own("backward")] = self.function.backward
        if self._quick is not None:
            self._quick = _around_backward(record, self._quick)
            if self.is_writing or self.plan.clears_saved:
                edges.run_in_backward(self.function, self._quick)
        make_node, spread = (namespace.get(source.own(name)) for name in ("make_node", "spread"))
        self.recorder = Recorders(self.function, self._quick, members, make_node, spread, saving.around)
        self.function.__module__ = declaration.function.__module__
        self.function.__qualname__ = f"{getattr(declaration.function, '__qualname__', '')}.function"  # pickles by this
        self.function.__new__ = _refuse_instance
        if declaration.schema.is_one_tuple:
            self.function.apply = staticmethod(enclosed(declaration.schema, self.function.apply))

    def choose(self, device_type: str | None) -> Callable[..., Any]:
        """Return the function that serves a device type now; at the level `full`, one that watches it."""
        function = self._kernels.choose(device_type)
        if isinstance(function, Choice):
            function.watch = self.watch if self.is_checked else None
        watched = self.watch(function) if self._is_watched else function
        return self._around_kernel(watched) if self.is_checked else watched

    def _helpers(self, record: OpRecord, derivatives: Derivatives) -> dict[str, Any]:
        found = {**direct.helpers(), **_helpers(record, derivatives), **_quick_helpers(derivatives)}
        found["choose"] = self.choose
        for index, step in enumerate(derivatives.vjp.steps):
            found.update(_rule_helpers(index, step, derivatives))
        if derivatives.drop_in is not None:
            found.update(derivatives.drop_in.helpers())
        return found


def _no_backward(*_: object) -> None:
    """Return nothing, in place of a backward, to see whether a capability wraps it."""


def _around_backward(record: OpRecord, backward: Callable[..., Any]) -> Callable[..., Any]:
    for capability in record.capabilities:
        backward = capability.around_backward(record, backward)
    return backward


def generated_code_of(record: OpRecord) -> GeneratedOp:
    """Return the generated code of an op at the current level of validation, made again after a change of its rules."""
    level = validation.level_of(record.validation)
    by_level = record.generated
    generated = by_level.get(level)
    if generated is None:
        with record.lock:
            generated = by_level.get(level) or GeneratedOp(record, level)
            by_level[level] = generated
    found: GeneratedOp = generated  # type: ignore[assignment]  # only this function fills the table
    return found


def source_of(record: OpRecord) -> str:
    """Return the generated source of an op: its line of shapes, the wrapper, the Function and the kernels' frame."""
    described = described_op(record)
    line = "" if described is None else f"# shapes: {described.rule.shown}\n"
    return line + call_source(record) + generated_code_of(record).source


def _write(plan: Plan, *, is_checked: bool, is_strict: bool) -> tuple[Source, FunctionWriter, NodeWriter]:
    source = Source(own_names(plan.declaration.schema, plan.declaration.name.name))
    source.lines("", "")
    write_kernel(source, plan.declaration.schema, is_checked=is_checked)
    source.lines("", "")
    writer = FunctionWriter(source, plan)
    writer.write()
    source.lines("", "")
    node = NodeWriter(writer, is_checked=is_checked, is_strict=is_strict)
    if writer.is_differentiable:
        node.write()
    AutogradWriter(writer).write()
    return source, writer, node


def _values(record: OpRecord) -> dict[str, Any]:
    """Return defaults and conversions that generated source names after arguments (Any: of any type)."""
    schema = record.declaration.schema
    return {**defaults(schema), **conversions(record.declaration)}


def _rule_helpers(index: int, step: Step, derivatives: Derivatives) -> dict[str, Any]:
    """Return what the quick backward calls for one rule (Any: functions of any signature)."""
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


def _quick_helpers(derivatives: Derivatives) -> dict[str, Any]:
    """Return what the quick backward calls, whatever the rules are (Any: functions of any signature)."""
    return {
        "output_metadata": output_metadata,
        "free_saved": functions.free_saved,
        "running": Running(),
        "known_of": derivatives.known_of,
        "FunctionType": FunctionType,
        "zeros_of": tensors.zeros_of,
        "first_tensor": tensors.first_tensor,
        "are_plain": lists.are_plain,
        "is_undefined": lists.is_undefined,
        "are_fit": gradients.are_fit,
        "has_needed": gradients.has_needed,
        "Named": Named,
        "restore_lists": lists.restore,
    }


def _helpers(record: OpRecord, derivatives: Derivatives) -> dict[str, Any]:
    """Return the functions and classes that generated source uses (Any: of any signature)."""
    return {
        "overload": opened(record),
        "instead": record.kernels.instead,
        "direct_calls": record.direct_calls,
        "read_result": ResultReader(record.declaration, record.kernels.describe).read,
        "read_recorded": ResultReader(record.declaration, record.kernels.describe, share=_keep(derivatives.plan)).read,
        "below": below,
        "leave_keys": leave_keys,
        "continue_below": continue_below,
        "redispatch": dispatch.redispatch,
        "BELOW_AUTOGRAD": dispatch.BELOW_AUTOGRAD,
        "any_requires_grad": functions.any_requires_grad,
        "is_transforming": transforms.is_transforming,
        "is_forward_mode": transforms.is_forward_mode,
        "without_bases": tensors.without_bases,
        "has_tangent": has_tangent,
        "is_whole_backward": edges.is_whole_backward,
        "needed_gradients": edges.needed_gradients,
        "note_saved": note_saved,
        "has_view": lambda values: any(map(functions.is_view, tensors.tensors_in(values))),
        "plain": tensors.plain,
        "is_wanted": tensors.is_wanted,
        "known": tensors.known,
        "without_history": without_history,
        "tensors_in": tensors.tensors_in,
        "any_floating": tensors.any_floating,
        "copies": tensors.copies,
        "overwrite": tensors.overwrite,
        "flatten_lists": lists.flatten,
        "flatten_gradients": flatten_gradients,
        "Layout": lists.Layout,
        "drop_in": derivatives.drop_in,
        "backward_of": derivatives.backward,
        "jvp_of": derivatives.jvp,
        "keep_for_jvp": derivatives.keep_for_jvp,
        "check_hidden": derivatives.check_hidden,
        "refuse_leaves": partial(refuse_leaves, record),
        "refuse_overlap": lambda inputs: overlap.refuse_overlap(record.declaration, inputs),
        "refuse_if_tracked": partial(refuse_if_tracked, record),
    }


def _keep(plan: Plan) -> Share:
    """Return how a node shares an unchanged input: autograd makes a view of it, unless it is saved."""
    saved = frozenset(plan.saved)
    is_any = plan.drop_in is not None
    return lambda name, tensor: tensor.clone() if is_any or name in saved else tensor


def without_history(value: Any) -> Any:  # Any: a tensor, a list of tensors, or None
    """Return a non-differentiable input, cut off from reverse and forward mode."""
    if isinstance(value, (list, tuple)):
        return [without_history(item) for item in value]
    if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
        return tensors.plain(value.detach())
    return value


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
