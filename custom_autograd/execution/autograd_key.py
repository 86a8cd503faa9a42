"""Generates the kernel at the Autograd dispatch key of an op, and says why an op may not write.

NOTE [writes under transforms]
In plain eager and under compilation a written argument is marked dirty. Under a transform or in forward mode the op
writes to a copy instead, and PyTorch's own `copy_` writes that back: it supports tangents, batches, views and versions
at every level, symbolic zeros included. So it does where the argument is a view and the op has several results: a node
that marks a view dirty may have only one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from custom_autograd.core.errors import GradientError, GradientUnavailable
from custom_autograd.core.messages import quote
from custom_autograd.execution import call
from custom_autograd.execution.function import FunctionWriter
from custom_autograd.execution.kernel_code import shared_names
from custom_autograd.execution.recording_code import RecordingCode, below, remaining
from custom_autograd.execution.source import Source, compile_source, own_names, pass_on, signature, tuple_of, values_of
from custom_autograd.registration.dispatcher_library import opened
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private import dispatch, functions, transforms
from custom_autograd.values import kernel_results, tensors


class AutogradWriter:
    """Writes the kernel of one op: the direct call first, then every other call."""

    def __init__(self, source: Source, function: FunctionWriter) -> None:
        self.function = function
        self.source = source
        self.plan = function.plan
        self.schema = function.schema

    def write(self) -> None:
        """Write it."""
        source, schema = self.source, self.schema
        with source.block(f"def $autograd({signature(schema, first='$keyset', for_dispatcher=True)})"):
            source.line(f'"""The kernel at the Autograd dispatch key of {self.function.name}."""')
            source.line("$keys = $keyset & $BELOW_AUTOGRAD")
            source.line(f"$is_odd = {self._is_odd()}")
            with source.block("if $is_odd and $road.around_autograd is not None"):
                source.line(f"$result = $road.around_autograd({pass_on(schema)})")
                with source.block("if $result is not $NotImplemented"):
                    source.line("return $result")
            tensors = [a.name for a in schema.differentiable_arguments]
            asked = [  # torch's own question fails on a None in a list
                f"*$tensors_in({a.name})" if a.type == "Tensor?[]" else a.name for a in schema.differentiable_arguments
            ]
            if not self.function.is_differentiable:
                self._write_unrecorded()
                return
            with source.block(
                f"if not (($transforms := $is_transforming()) or $forward_ad._current_level >= 0 or "
                f"($is_grad_enabled() and $any_requires_grad({', '.join(asked)})))"
            ):
                self._write_unrecorded()
            if self._refuses():
                source.line(f"$refuse_if_tracked({_dict(tensors)})")
                source.line(f"return $below($overload, {pass_on(schema)})")
                return
            self._write_preparation(tensors)
            self._write_application()

    def _write_unrecorded(self) -> None:
        """Write the call of which nothing is recorded."""
        source, outputs, call = self.source, self.schema.outputs, f"$redispatch($keys, {pass_on(self.schema)})"
        if not self.schema.may_return_inputs:
            source.line(f"return {call}")
            return
        source.line(f"{', '.join(output.name for output in outputs)} = {call}")
        for output in [one for one in outputs if one.may_be is not None]:
            source.line(f"{output.name} = $as_view({output.name}, {output.may_be})")
        names = [output.name for output in outputs]
        source.line(f"return {names[0] if len(names) == 1 else tuple_of(names)}")

    def _is_odd(self) -> str:
        """Return source of whether any tensor is not a plain strided one; a mode has the key of wrappers, too."""
        tensors = self.schema.tensor_arguments
        not_plain = [f"$type({one.name}) is not $Tensor" for one in tensors if one.type == "Tensor"]
        asked = " or ".join(not_plain) if len(not_plain) == len(tensors) else "True"
        names = ", ".join(argument.name for argument in tensors)
        wrapped = f"$bits & $PYTHON and ({asked}) and $has_python_key({names})"
        return f"(($bits := $keys.raw_repr()) & $NOT_PLAIN or ({wrapped}))"

    def _refuses(self) -> bool:
        """Return True if a write that no rule accounts for would make gradients wrong."""
        return bool(self.schema.mutated_arguments) and not self.plan.has_reverse and self.plan.jvp is None

    def _write_preparation(self, tensors: list[str]) -> None:
        """Take lazy bits and unwanted histories off the inputs."""
        for argument in self.schema.tensor_arguments:
            if argument.is_mutated:
                continue
            if argument.name in tensors:
                with self.source.block("if $is_odd"):
                    self.source.line(f"{argument.name} = $plain({argument.name})")
            else:
                self.source.line(f"{argument.name} = $without_history({argument.name})")

    def _write_application(self) -> None:
        source = self.source
        if self.function.mutated:
            if len(self.schema.tensor_arguments) > 1 or self.function.has_lists:
                source.line(f"$refuse_overlap({_dict([a.name for a in self.schema.tensor_arguments])})")
            several = len(self.function.results) > 1 or self.function.has_lists
            views = f" or $has_view({tuple_of(self.function.mutated)})" if several else ""
            source.line(f"$in_place = not ($transforms or $is_forward_mode(){views})")
            with source.block("if $in_place"):
                source.line(f"$refuse_leaves({_dict(self.function.mutated)})")
            source.line(
                f"{', '.join(self._old(name) for name in self.function.mutated)} = {', '.join(self.function.mutated)}"
            )
        source.line("$remaining.keys = $keys, $is_odd")  # NOTE [one event per call] in recording_code.py
        source.line("$run = $apply_under_transforms if $transforms else $apply")
        if self.function.has_lists:
            flags = tuple_of([str(argument.is_tensor_list) for argument in self.schema.arguments])
            source.line(f"$flat, $lengths = $flatten_lists({tuple_of(self.function.inputs)}, {flags})")
            source.line("$layout = $Layout($lengths)")
            source.line(f"$results = $run({', '.join(self.function.parameters())})")
            source.line(f"{', '.join(self.function.results)}, = $restore_lists($results, $layout.outputs)")
        else:
            source.line(f"{', '.join(self.function.results)} = $run({', '.join(self.function.parameters())})")
        if self.function.mutated:
            with source.block("if not $in_place"):
                old = [self._old(name) for name in self.function.mutated]
                source.line(f"$overwrite({tuple_of(old)}, {tuple_of(self.function.mutated)})")
        returned = [
            self._old(output.alias_of) if output.alias_of and not output.is_view else output.name
            for output in self.schema.outputs
        ]
        if returned:
            source.line(f"return {returned[0] if len(returned) == 1 else tuple_of(returned)}")

    def _old(self, name: str) -> str:
        """Return the name of a mutated argument's old value, once its own name holds its value after the call."""
        return f"$given${name}"


def _dict(names: list[str]) -> str:
    return "{" + ", ".join(f'"{name}": {name}' for name in names) + "}"


def refuse_leaves(record: OpRecord, inputs: Mapping[str, Any]) -> None:
    """Raise before a leaf is written to; torch itself would raise only after the kernel ran."""
    for name, value in inputs.items():
        if any(map(functions.is_leaf_in_graph, tensors.tensors_in([value]))):
            raise GradientError(
                record.name,
                f"'{name}' is a leaf that requires a gradient, or a view of one, and the op writes to it",
                declared=record.declaration.location,
                do="call it under torch.no_grad(), or on a copy",
            )


def refuse_if_tracked(record: OpRecord, inputs: Mapping[str, Any]) -> None:
    """Raise where an input of a writing op without rules has a gradient or a tangent."""
    names = [name for name, value in inputs.items() if any(map(transforms.is_tracked, tensors.tensors_in([value])))]
    if not names:
        return
    raise GradientUnavailable(
        record.name,
        f"the op writes to {quote(a.name for a in record.declaration.schema.mutated_arguments)} and has no "
        f"backward, and {_requiring(names)}, which would be wrong",
        declared=record.declaration.location,
        do="register_backward, name the inputs that carry no gradient in non_differentiable=, or call it under "
        "torch.no_grad()",
    )


def _requiring(names: Sequence[str]) -> str:
    """Return "'x' requires a gradient", or "'x' and 'weight' require gradients"."""
    if len(names) == 1:
        return f"{quote(names)} requires a gradient"
    return f"{quote(names[:-1])} and {quote(names[-1:])} require gradients"


class AutogradCode:
    """The kernel at the Autograd key for one op.

    Attributes:
        source: its text.
        call: (keyset, *args, **kwargs) -> what the schema declares (Any).
    """

    def __init__(self, record: OpRecord, writer: FunctionWriter, recording: RecordingCode) -> None:
        declaration = record.declaration
        source = Source(own_names(declaration.schema, declaration.name.name))
        AutogradWriter(source, writer).write()
        self.source = source.text
        applies = {"apply": recording.apply, "apply_under_transforms": recording.apply_under_transforms}
        helpers = {**shared_names(), **_helpers(record), **values_of(declaration), **applies}
        namespace = compile_source(self.source, f"{record.name} autograd", source.namespace(helpers))
        self.call: Callable[..., Any] = namespace[source.own("autograd")]


def _helpers(record: OpRecord) -> dict[str, Any]:
    """Return what the source calls (Any: functions of any signature)."""
    return {
        "overload": opened(record),
        **call.NAMES,
        "road": record.road,
        "below": below,
        "remaining": remaining,
        "redispatch": dispatch.redispatcher(opened(record)),
        "NOT_PLAIN": dispatch.NOT_PLAIN,
        "PYTHON": dispatch.PYTHON,
        "has_python_key": has_python_key,
        "NotImplemented": NotImplemented,
        "BELOW_AUTOGRAD": dispatch.BELOW_AUTOGRAD,
        "any_requires_grad": functions.any_requires_grad,
        "is_forward_mode": transforms.is_forward_mode,
        "has_view": lambda values: any(map(functions.is_view, tensors.tensors_in(values))),
        "plain": tensors.plain,
        "without_history": without_history,
        "tensors_in": tensors.tensors_in,
        "overwrite": tensors.overwrite,
        "flatten_lists": kernel_results.flatten,
        "restore_lists": kernel_results.restore,
        "Layout": kernel_results.Layout,
        "refuse_leaves": partial(refuse_leaves, record),
        "refuse_overlap": lambda inputs: tensors.refuse_overlap(record.declaration, inputs),
        "refuse_if_tracked": partial(refuse_if_tracked, record),
    }


def without_history(value: Any) -> Any:  # Any: a tensor, a list of tensors, or None
    """Return a non-differentiable input, cut off from reverse and forward mode."""
    if isinstance(value, (list, tuple)):
        return [without_history(item) for item in value]
    if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
        return tensors.plain(value.detach())
    return value


def has_python_key(*values: Any) -> bool:  # Any: tensors, lists of tensors, or None
    """Return True if a tensor answers for itself in Python; the key of a mode is on for any tensor."""
    return any(map(dispatch.is_wrapper, tensors.tensors_in(values)))
