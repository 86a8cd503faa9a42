"""Generates the kernel at the Autograd dispatch key of an op.

NOTE [writes under transforms]
In plain eager and under compilation a written argument is marked dirty. Under a transform or in forward mode the op
writes to a copy instead, and PyTorch's own `copy_` writes that back: it supports tangents, batches, views and versions
at every level, symbolic zeros included. So it does where the argument is a view and the op has several results: a node
that marks a view dirty may have only one.
"""

from __future__ import annotations

from custom_autograd.autograd.function import FunctionWriter
from custom_autograd.calls.parameters import signature
from custom_autograd.calls.passing import pass_on
from custom_autograd.calls.source import Source, tuple_of


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
            source.line(f'"""What stands at the Autograd dispatch key of {self.function.name}."""')
            source.line("$keys = $keyset & $BELOW_AUTOGRAD")
            with source.block(f"if $record.around_autograd is not None and {self._is_odd()}"):
                source.line(f"$result = $record.around_autograd({pass_on(schema)})")
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
                f"if not ($is_transforming() or $forward_ad._current_level >= 0 or "
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
        self.source.line(f"$is_odd = {self._is_odd()}")
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
            source.line(f"$in_place = not ($is_transforming() or $is_forward_mode(){views})")
            with source.block("if $in_place"):
                source.line(f"$refuse_leaves({_dict(self.function.mutated)})")
            source.line(
                f"{', '.join(self._old(name) for name in self.function.mutated)} = {', '.join(self.function.mutated)}"
            )
        source.line("$remaining.keys = $keys, $is_odd")  # NOTE [one event per call] in below.py
        source.line("$run = $apply_under_transforms if $is_transforming() else $apply")
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
