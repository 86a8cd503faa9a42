"""GeneratedOp: the code that is generated for one op from its schema and its rules, each part when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from custom_autograd.core.lazy import Once
from custom_autograd.execution.autograd_key import AutogradCode
from custom_autograd.execution.call import call_source, make_call, make_traced
from custom_autograd.execution.kernel_code import AroundKernels, KernelCode
from custom_autograd.execution.plan import Plan, plan_of
from custom_autograd.execution.recording_code import RecordingCode, RecordingFacts
from custom_autograd.execution.watching import Watcher
from custom_autograd.registration.dispatcher_library import opened
from custom_autograd.registration.kernel import KernelChoice
from custom_autograd.registration.kernel_table import kernel_behind
from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.rule import described_op
from custom_autograd.torch_private import dispatch
from custom_autograd.torch_private.compiler import constant_in_graphs
from custom_autograd.values import validation
from custom_autograd.values.tensors import tensors_in


class GeneratedOp:
    """Code generated for an op from its schema and its rules.

    A call without gradients that needs no dispatcher runs none of the three parts. They are written and compiled when
    a call needs them: that takes longer than the declaration of the op.

    Attributes:
        is_checked: the results of kernels and rules are looked at.
        is_writing: kernels write to inputs.
        lock: the lock of the op, held while a part is made.
    """

    def __init__(self, record: OpRecord, level: str) -> None:
        self._record, self.lock = record, record.lock
        self.is_checked = level != "off"
        self.is_writing = bool(record.declaration.schema.mutated_arguments)
        self._is_watched = level == "full"
        self._around_kernel = AroundKernels(record)
        self._kernels = record.kernels

    @Once
    def watch(self) -> Watcher:
        """What makes a kernel one whose every call is checked in full."""
        return Watcher(self._record, compares_contents=self._is_watched)

    def choose(self, device_type: str | None) -> Callable[..., Any]:
        """Return the function that serves a device type now; at the level `full`, one that watches it.

        Any: takes and returns what the schema declares, here and below.
        """
        function = self._kernels.choose(device_type)
        behind = kernel_behind(function)
        if isinstance(behind, KernelChoice):
            behind.watch = self.watch if self.is_checked else None
        watched = self.watch(function) if self._is_watched else function
        return self._around_kernel(watched) if self.is_checked else watched

    @Once
    def plan(self) -> Plan:
        """Return the plan of all derivatives, which the code follows."""
        return plan_of(self._record)

    @Once
    def recording_facts(self) -> RecordingFacts:
        """Return how calls are recorded as nodes, as far as native nodes need it."""
        return RecordingFacts(self._record, self.plan, is_checked=self.is_checked, is_strict=self._is_watched)

    @Once
    def recording(self) -> RecordingCode:
        """What records calls as nodes: the autograd.Function, and the forward of its nodes."""
        return RecordingCode(self._record, self.recording_facts)

    def record_call(self, *values: Any) -> Any:
        """Run and record a call that native code recognises and cannot record: the op at its Autograd key."""
        return self._redispatched(*values)

    @Once
    def _redispatched(self) -> Callable[..., Any]:
        redispatch = dispatch.redispatcher(opened(self._record))
        arguments = self._record.declaration.schema.arguments
        first = sum(not argument.is_keyword_only for argument in arguments)
        names = [argument.name for argument in arguments[first:]]

        def record(*values: Any) -> Any:
            keys = dispatch.autograd_keys_of(tensors_in(values))
            return redispatch(keys, *values[:first], **dict(zip(names, values[first:], strict=True)))

        return record

    @Once
    def _kernel(self) -> KernelCode:
        watch = self.watch if self.is_checked and not self._is_watched else None
        return KernelCode(self._record, watch, is_checked=self.is_checked)

    @Once
    def _autograd(self) -> AutogradCode:
        return AutogradCode(self._record, self.recording_facts.writer, self.recording)

    def kernel_of(self, device_type: str | None) -> Callable[..., Any]:
        """Return what runs at a backend's key: around the function that serves the device type now."""
        return self._kernel.around(self.choose(device_type))

    @Once
    def autograd(self) -> Callable[..., Any]:
        """The kernel at the Autograd key: (keyset, *args, **kwargs)."""
        return self._autograd.call

    @property
    def source(self) -> str:
        """Return the text of all parts."""
        parts = (self._kernel, self.recording, self._autograd)
        return "".join(f"\n\n{part.source.strip()}\n" for part in parts)


def generated_code_of(record: OpRecord) -> GeneratedOp:
    """Return the generated code of an op at the current level of validation, made again after a change of its rules."""
    level = validation.level_of(record.validation)
    by_level = record.road.generated
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


Call = Callable[..., Any]  # Any: takes and returns what the schema declares


class DispatchedCalls:
    """The calls of one op by way of the dispatcher.

    Dynamo may be the first to ask for them. It cannot trace what generates code, so it runs that as a constant, and
    traces what was generated.

    Attributes:
        generate: generates the two below, once; to be called before they are read.
        call: the call of the flat op, where every argument is one of the schema.
        in_graphs: what `op(...)` runs while Dynamo traces it.
    """

    call: Call
    in_graphs: Call

    def __init__(self, record: OpRecord) -> None:
        self._record = record
        self._observed: Call | None = None
        is_generated = False

        @constant_in_graphs
        def generate() -> None:
            nonlocal is_generated
            with record.lock:
                if not is_generated:
                    self.call = make_call(record, record.overload)
                    self.in_graphs = make_traced(record, self.call)
                    is_generated = True

        self.generate = generate

    @property
    def observed(self) -> Call:
        """Return the same call, as observers below Python see it."""
        with self._record.lock:
            self._observed = self._observed or make_call(self._record, self._record.definition.observed)
        return self._observed
