"""GeneratedOp: the code that is generated for one op from its schema and its rules, each part when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from custom_autograd.core.lazy import Once, PerFunction
from custom_autograd.execution.autograd_key import autograd_code
from custom_autograd.execution.call import call_source, make_call, make_outer_call, make_traced_call
from custom_autograd.execution.kernel_code import around_kernels, kernel_code
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

Call = Callable[..., Any]  # Any: takes and returns what the schema declares


class GeneratedOp(RecordingFacts):
    """Code generated for an op from its schema and its rules.

    A call without gradients that needs no dispatcher runs none of the three parts. They are written and compiled when
    a call needs them: that takes longer than the declaration of the op.

    Attributes:
        is_writing: kernels write to inputs.
    """

    def __init__(self, record: OpRecord, level: str) -> None:
        super().__init__(record, level)
        self.is_writing = bool(record.declaration.schema.mutated_arguments)
        self._around_kernel = PerFunction(partial(around_kernels, record))
        self._kernels = record.kernels

    @Once
    def watch(self) -> PerFunction:
        """Return what makes a kernel one whose every call is checked in full."""
        return PerFunction(Watcher(self._record, compares_contents=self._is_strict))

    def choose(self, device_type: str | None) -> Call:
        """Return the function that serves a device type now; at the level `full`, one that watches it."""
        function = self._kernels.choose(device_type)
        behind = kernel_behind(function)
        if isinstance(behind, KernelChoice):
            behind.watch = self.watch if self.is_checked else None
        watched: Call = self.watch(function) if self._is_strict else function
        return self._around_kernel(watched) if self.is_checked else watched

    @Once
    def recording(self) -> RecordingCode:
        """What records calls as nodes: the autograd.Function, and the forward of its nodes."""
        return RecordingCode(self._record, self)

    @Once
    def record_call(self) -> Call:
        """Return what runs and records a call that native code cannot record: the op at its Autograd key."""
        redispatch = dispatch.redispatcher(opened(self._record))
        arguments = self._record.declaration.schema.arguments
        first = sum(not argument.is_keyword_only for argument in arguments)
        names = [argument.name for argument in arguments[first:]]

        def record(*values: Any) -> Any:
            keys = dispatch.autograd_keys_of(tensors_in(values))
            return redispatch(keys, *values[:first], **dict(zip(names, values[first:], strict=True)))

        return record

    @Once
    def _kernel(self) -> tuple[str, PerFunction]:
        watch = self.watch if self.is_checked and not self._is_strict else None
        return kernel_code(self._record, watch, is_checked=self.is_checked)

    @Once
    def _autograd(self) -> tuple[str, Call]:
        return autograd_code(self._record, self.plan, self.recording)

    def kernel_of(self, device_type: str | None) -> Call:
        """Return what runs at a backend's key: around the function that serves the device type now."""
        _, around = self._kernel
        made: Call = around(self.choose(device_type))
        return made

    @property
    def autograd(self) -> Call:
        """Return the kernel at the Autograd key: (keyset, *args, **kwargs)."""
        return self._autograd[1]

    @property
    def source(self) -> str:
        """Return the text of all parts."""
        texts = (self._kernel[0], self.recording.source, self._autograd[0])
        return "".join(f"\n\n{text.strip()}\n" for text in texts)


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


class DispatchedCalls:
    """The calls of one op by way of the dispatcher.

    Dynamo may be the first to ask for them. It cannot trace what generates code, so it runs that as a constant, and
    traces what was generated.

    Attributes:
        generate: generates the three below, once; to be called before they are read.
        call: the call of the flat op, where every argument is one of the schema.
        outer: the same with the containers that its author sees.
        in_graphs: what Dynamo traces in place of `op(...)`; it takes the op first.
    """

    call: Call
    outer: Call
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
                    self.outer = make_outer_call(record, self.call)
                    self.in_graphs = make_traced_call(record)
                    is_generated = True

        self.generate = generate

    @property
    def observed(self) -> Call:
        """Return the same call, as observers below Python see it."""
        with self._record.lock:
            self._observed = self._observed or make_call(self._record, self._record.definition.observed)
        return self._observed
