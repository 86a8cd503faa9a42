"""Generates the kernel at the Autograd dispatch key of an op, and says why an op may not write.

NOTE [writes under transforms]
In plain eager a written argument is marked dirty. Under a transform or in forward mode the op writes to a copy
instead, and PyTorch's own `copy_` writes that back: it supports tangents, batches, views and versions at every level,
symbolic zeros included. So it does where the argument is a view, unless it is the first tensor of the op and its only
result: a node that marks a view dirty may have only one result, and autograd takes the history of the base for that of
the node's first tensor, whichever is written to, which gives wrong gradients without an error. And where AOTAutograd
traces: of an input of the graph that a Python node wrote to last, compiled code returns a copy. The copy that the op
writes to costs nothing there, since Inductor removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from custom_autograd.core.errors import GradientError, GradientUnavailable
from custom_autograd.core.messages import quote
from custom_autograd.execution.function import FunctionWriter
from custom_autograd.execution.plan import Plan
from custom_autograd.execution.recording_code import RecordingCode, common_names
from custom_autograd.execution.source import Source, dict_of, named, pass_on, signature, tuple_of, values_of
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private import dispatch, functions, transforms
from custom_autograd.values import tensors


class AutogradWriter(FunctionWriter):
    """Writes the kernel of one op: the direct call first, then every other call."""

    def write(self) -> None:
        """Write it, and not the Function."""
        source, schema = self.source, self.schema
        with source.block(f"def $autograd({signature(schema, first='$keyset', for_dispatcher=True)})"):
            source.line(f'"""The kernel at the Autograd dispatch key of {self.name}."""')
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
            if not self.is_differentiable:
                self._write_unrecorded()
                return
            with source.block(
                f"if not (($transforms := $is_transforming()) or $forward_ad._current_level >= 0 or "
                f"($is_grad_enabled() and $any_requires_grad({', '.join(asked)})))"
            ):
                self._write_unrecorded()
            if self.mutated and not self.plan.has_reverse and self.plan.jvp is None:  # gradients would be wrong
                source.line(f"$refuse_if_tracked({dict_of(tensors)})")
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
        if self.mutated:
            if len(self.schema.tensor_arguments) > 1 or self.has_lists:
                source.line(f"$refuse_overlap({dict_of([a.name for a in self.schema.tensor_arguments])})")
            source.line("$in_place = not ($transforms or $is_forward_mode())")
            with source.block("if $in_place"):
                source.line(f"$refuse_leaves({dict_of(self.mutated)})")
                if not self._takes_views():
                    source.line(f"$in_place = not $has_view({tuple_of(self.mutated)})")
                source.line("$in_place = $in_place and not ($is_odd and $is_functionalizing())")
            source.line(f"{', '.join(self._old(name) for name in self.mutated)} = {', '.join(self.mutated)}")
        source.line("$remaining.keys = $keys, $is_odd")  # NOTE [one event per call] in recording_code.py
        source.line("$run = $apply_under_transforms if $transforms else $apply")
        if self.has_lists:
            flags = tuple_of([str(argument.is_tensor_list) for argument in self.schema.arguments])
            source.line(f"$flat, $lengths = $flatten_lists({tuple_of(self.inputs)}, {flags})")
            source.line("$layout = $Layout($lengths)")
            source.line(f"$results = $run({', '.join(self.parameters())})")
            source.line(f"{', '.join(self.results)}, = $restore_lists($results, $layout.outputs)")
        else:
            source.line(f"{', '.join(self.results)} = $run({', '.join(self.parameters())})")
        if self.mutated:
            with source.block("if not $in_place"):
                old = [self._old(name) for name in self.mutated]
                source.line(f"$overwrite({tuple_of(old)}, {tuple_of(self.mutated)})")
        returned = [
            self._old(output.alias_of) if output.alias_of and not output.is_view else output.name
            for output in self.schema.outputs
        ]
        if returned:
            source.line(f"return {returned[0] if len(returned) == 1 else tuple_of(returned)}")

    def _takes_views(self) -> bool:
        """Return True if a node of the op may mark a view dirty."""
        is_first = self.mutated == [self.schema.tensor_arguments[0].name]
        return is_first and len(self.results) == 1 and not self.has_lists

    def _old(self, name: str) -> str:
        """Return the name of a mutated argument's old value, once its own name holds its value after the call."""
        return f"$given${name}"


def refuse_leaves(record: OpRecord, inputs: Mapping[str, Any]) -> None:
    """Raise before a leaf is written to; torch itself would raise only after the kernel ran."""
    for name, value in inputs.items():
        if any(map(functions.is_leaf_in_graph, tensors.tensors_in([value]))):
            raise record.declaration.error(
                GradientError,
                f"'{name}' is a leaf that requires a gradient, or a view of one, and the op writes to it",
                do="call it under torch.no_grad(), or on a copy",
            )


def refuse_if_tracked(record: OpRecord, inputs: Mapping[str, Any]) -> None:
    """Raise where an input of a writing op without rules has a gradient or a tangent."""
    names = [name for name, value in inputs.items() if any(map(transforms.is_tracked, tensors.tensors_in([value])))]
    if not names:
        return
    raise record.declaration.error(
        GradientUnavailable,
        f"the op writes to {quote(a.name for a in record.declaration.schema.mutated_arguments)} and has no "
        f"backward, and {_requiring(names)}, which would be wrong",
        do="register_backward, name the inputs that carry no gradient in non_differentiable=, or call it under "
        "torch.no_grad()",
    )


def _requiring(names: Sequence[str]) -> str:
    """Return "'x' requires a gradient", or "'x' and 'weight' require gradients"."""
    if len(names) == 1:
        return f"{quote(names)} requires a gradient"
    return f"{quote(names[:-1])} and {quote(names[-1:])} require gradients"


def autograd_code(record: OpRecord, plan: Plan, recording: RecordingCode) -> tuple[str, Callable[..., Any]]:
    """Return the kernel at the Autograd key for one op: its text, and the function.

    That is (keyset, *args, **kwargs) -> what the schema declares (Any).
    """
    source = Source.of(record.declaration)
    AutogradWriter(source, plan).write()
    applies = {"apply": recording.apply, "apply_under_transforms": recording.apply_under_transforms}
    helpers = {**_helpers(record), **values_of(record.declaration), **applies}
    return source.text, source.compiled(f"{record.name} autograd", helpers)["autograd"]


def _helpers(record: OpRecord) -> dict[str, Any]:
    """Return what the source calls (Any: functions of any signature)."""
    return {
        **common_names(record),
        **named(has_python_key, without_history, tensors.overwrite),
        **named(transforms.is_forward_mode, dispatch.is_functionalizing),
        "road": record.road,
        "NOT_PLAIN": dispatch.NOT_PLAIN,
        "PYTHON": dispatch.PYTHON,
        "NotImplemented": NotImplemented,
        "BELOW_AUTOGRAD": dispatch.BELOW_AUTOGRAD,
        "any_requires_grad": functions.any_requires_grad,
        "has_view": lambda values: any(map(functions.is_view, tensors.tensors_in(values))),
        "refuse_leaves": partial(refuse_leaves, record),
        "refuse_overlap": partial(tensors.refuse_overlap, record.declaration),
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
