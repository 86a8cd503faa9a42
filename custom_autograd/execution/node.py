"""Writes the forward of the nodes of an op, in straight lines, with their quick backward and quick jvp.

The nodes are those of the generated Function (function.py). Its `forward` and `setup_context` are one function here,
which takes ctx: torch runs that in half the time. Eager passes run the quick backward (quick_backward.py), where there
is one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from custom_autograd.execution.function import IS_FORWARD, FunctionWriter
from custom_autograd.execution.plan import SAVED_VALUES, Plan, keeps_metadata, uses_own_context
from custom_autograd.execution.quick_backward import QuickWriter
from custom_autograd.execution.source import Source, pass_on, tuple_of
from custom_autograd.registration.rule_types import NamedRule
from custom_autograd.schema.schema import Output


class NodeWriter(FunctionWriter):
    """Writes the Function of one op, and its nodes.

    Attributes:
        has_native_quick: native nodes need a quick backward of their own.
        has_own_context: a drop-in rule takes torch's own ctx in an eager call.
        has_quick_jvp: the jvp rule is called in straight lines.
    """

    def __init__(
        self, source: Source, plan: Plan, *, is_checked: bool, is_strict: bool, has_native_quick: bool
    ) -> None:
        super().__init__(source, plan)
        self.is_strict = is_strict  # gradients that are not needed are looked at, too
        may_have_own = uses_own_context(plan) and not self.mutated and not is_strict
        self.has_own_context = plan.drop_in is not None and may_have_own
        self.keeps_metadata = keeps_metadata(plan, is_strict=is_strict)
        self.quick = QuickWriter(self, is_checked=is_checked, keeps_metadata=self.keeps_metadata)
        self.has_native_quick = has_native_quick
        self.has_quick_jvp = plan.jvp is not None and not self.keeps_metadata and self._can_have_quick_jvp(plan.jvp)

    def write(self) -> None:
        """Write the class, `$quick`, `$native_quick`, and `$record`, the forward of a node."""
        super().write()
        if not self.is_differentiable:
            return
        self.source.lines("", "")
        has_quick = self._write_quick()
        if has_quick:
            self.source.lines("", "")
        if self.has_native_quick:  # native nodes run a rule that takes one gradient by themselves
            QuickWriter(self, is_checked=False, keeps_metadata=False, is_native=True).write()
            self.source.lines("", "")
        with self.source.block(f"def $record({', '.join(['$ctx', *self.parameters()])})"):
            self._write_record(keeps_facts=has_quick and self.plan.drop_in is None)
        self.source.lines("", "")

    def _write_quick(self) -> bool:
        """Write a quick backward; returns False if the op can have none."""
        if self.plan.drop_in is not None:
            if self.has_own_context:
                self._write_quick_drop_in()
            return self.has_own_context
        if self.is_strict:
            return False
        if self.quick.is_possible:
            self.quick.write()
        return self.quick.is_possible

    def _write_record(self, *, keeps_facts: bool) -> None:
        source = self.source
        given = {name: f"$given${name}" if name in self.mutated else name for name in self.differentiable}
        source.line("($keys, $is_odd), $remaining.keys = $remaining.keys, $NONE_LEFT")
        self.write_lists()
        for name in self.mutated:  # a tangent belongs to what was given, and not to the copy that is written to
            source.line(f"$given${name} = {name}")
        self.write_copies()
        self._write_call()
        self.write_views_cut()
        source.line(f"$output = {self.flat_results()}")
        self._write_oddity()
        if self.has_lists:
            source.line("$ctx.layout = $layout")
        self.write_dirty()
        self._write_context()
        if keeps_facts:
            self.quick.write_facts()
        self.quick.write_integers()
        self.write_hidden_check()
        self._write_tangents(given)
        source.line("return $output")

    def _write_call(self) -> None:
        """Write the call below the Autograd key: of the next level from the top, else of the keys that remain."""
        source = self.source
        passed = pass_on(self.schema)
        self.write_tangents_forgotten()
        with source.block("if $is_transforming() or ($is_odd and $is_functionalizing())"):
            source.line(f"{self.targets()}$below($overload, {passed})")
        with source.block("else"), source.block("with $below_autograd()"):
            source.line(f"{self.targets()}$redispatch($keys, {passed})")
            for output in [one for one in self.schema.outputs if one.may_be is not None]:
                saved = self.plan.drop_in is not None or output.name in self.plan.saved
                source.line(f"{output.name} = $as_input({output.name}, {output.may_be}, is_saved={saved})")

    def _write_oddity(self) -> None:
        """Write that the node is odd if a tensor is: the graph does not know all that the backward has to."""
        fresh = [output for output in self.schema.fresh_outputs if output.holds_tensors]
        odd = ["$is_odd", *(self._is_odd(output) for output in fresh)]
        with self.source.block(f"if {' or '.join(odd)}"):
            self.source.line("$ctx.is_odd = True")
            if not self.keeps_metadata:
                self.source.line(f"$ctx.known = {self.metadata()}")

    @staticmethod
    def _is_odd(output: Output) -> str:
        if output.type == "Tensor":
            return f"$type({output.name}) is not $Tensor or {output.name}.layout is not $strided"
        return f"$are_odd({output.name})"

    def _write_context(self) -> None:
        """Write what the node keeps of a call; a drop-in rule takes torch's own ctx in an eager call, if it can."""
        is_odd = "if $ctx.is_odd or $forward_ad._current_level >= 0 or $is_transforming()"
        with self.source.block(is_odd) if self.has_own_context else contextlib.nullcontext():
            if self.plan.drop_in is not None or not all(map(self.plan.is_always_saved, self.saved_tensors)):
                self.unpack_needs()
            self.write_context(keeps_metadata=self.keeps_metadata)
        if self.has_own_context:
            with self.source.block("else"):
                self._write_own_context()

    def _write_tangents(self, given: Mapping[str, str]) -> None:
        """Write what the jvp reads, where an input has a tangent."""
        source = self.source
        values = [f"*({one} or ())" if self.is_list(name) else one for name, one in given.items()]
        with source.block(f"if {IS_FORWARD}"):
            source.line(f"$tangents = $find_tangents({', '.join(values)})")
            with source.block("if $tangents"):
                if not self.keeps_metadata:
                    recorded = "$tangents > 1 or $is_transforming() or True in $ctx.needs_input_grad"
                    asked = f" and ({recorded})" if self.has_quick_jvp else ""
                    with source.block(f"if $ctx.known is None{asked}"):
                        source.line(f"$ctx.known = {self.metadata()}")
                self.write_kept_for_jvp()

    def _write_quick_drop_in(self) -> None:
        """Write the call of the rule with torch's own ctx; the engine checks what it returns."""
        source, inputs, grads = self.source, self.inputs, self.incoming()
        lazy = [f"({name} is not None and ({name}.is_neg() or {name}.is_conj()))" for name in grads.split(", ")]
        with source.block(f"def $quick($ctx, {grads})"):
            odd = ["$ctx.is_odd", *lazy, f"$hasattr($ctx, '{SAVED_VALUES}')", "not $is_whole_backward()"]
            with source.block(f"if {' or '.join(odd)}"):
                source.line(f"return $backward($ctx, {grads})")
            with source.block("try"):
                source.line(f"$result = $rule_0($ctx, {grads})")
            with source.block("except $Exception as $error"):
                source.line("$note_0($error)")
                source.line("raise")
            fits = [f"$type($result) is $tuple and $len($result) == {len(inputs)}"]
            for index, name in enumerate(inputs):
                is_tensor = f" or $type($result[{index}]) is $Tensor" if name in self.differentiable else ""
                fits.append(f"($result[{index}] is None{is_tensor})")
            with source.block(f"if {' and '.join(fits)}"):
                source.line("return $result")
            source.line("return $drop_in.in_order($result, $ctx.needs_input_grad)")

    def _write_own_context(self) -> None:
        """Run the setup_context of a drop-in rule on torch's own ctx."""
        source, drop_in = self.source, self.plan.drop_in
        if drop_in is None or drop_in.setup_context is None:
            source.line("pass")
            return
        outputs = [output.name for output in self.schema.outputs]
        output = outputs[0] if len(outputs) == 1 else tuple_of(outputs)
        inputs = tuple_of(self.converted())
        marked = [f"$marked${name}" for name in outputs]
        for name, mark in zip(outputs, marked, strict=True):  # see `mark` in drop_in.py
            source.line(f"{mark} = ({name}.is_floating_point() or {name}.is_complex()) and not {name}.requires_grad")
            with source.block(f"if {mark}"):
                source.line(f"{name}.requires_grad = True")
        source.line("$set_grad_enabled(True)")  # NOTE [setup_context is recorded] in drop_in.py
        with source.block("try"):
            source.line(f"$setup($ctx, {inputs}, {output})")
        with source.block("except $Exception as $error"):
            source.line("$note_0($error)")
            source.line("raise")
        source.line("$set_grad_enabled(False)")
        for name, mark in zip(outputs, marked, strict=True):
            with source.block(f"if {mark}"):
                source.line(f"{name}.requires_grad = False")
        source.line("$is_computed = False")
        is_given = [f"$tensor is not {one.name}" for one in self.schema.tensor_arguments]
        with source.block("for $tensor in $ctx.to_save or ()"):
            with source.block("if $type($tensor) is not $Tensor"):
                source.line("$check_saved($ctx.to_save)")
            with source.block(f"elif $tensor.grad_fn is not None{''.join(f' and {one}' for one in is_given)}"):
                source.line("$is_computed = True")
        with source.block("if $ctx.__dict__"):
            source.line("$drop_in.park($ctx)")
            source.line("$is_computed = True")
        with source.block("if $is_computed and $ctx.to_save"):
            source.line(f"$ctx.to_save = $drop_in.forbid_following($ctx.to_save, {inputs}, {output})")

    def _can_have_quick_jvp(self, rule: NamedRule) -> bool:
        """Return True if a rule takes every tangent by name and returns that of one tensor."""
        schema = self.schema
        if self.plan.drop_in is not None or self.has_lists or schema.mutated_arguments:
            return False
        (first, *others) = self.plan.results
        if others or first.type != "Tensor" or not first.is_differentiable or schema.is_view or schema.hidden_outputs:
            return False
        return "needs" not in rule.names and all(f"tangent_{name}" in rule.names for name in self.differentiable)

    def write_quick_jvp(self) -> None:
        """Write a call of the jvp rule in straight lines, for calls that record nothing, if the op can have it.

        Every other call goes to the general jvp (jvp.py), which returns the same tangents and raises the same errors.
        """
        if not self.has_quick_jvp or self.plan.jvp is None:
            return
        source = self.source
        tangents = [f"$tangent${name}" for name in self.differentiable]
        with source.block("if $ctx.known is None"):
            source.line("$values, $results = $ctx.forward")
            source.line("del $ctx.forward")
            for tangent in tangents:
                with source.block(f"if {tangent} is not None and ({tangent}.is_neg() or {tangent}.is_conj())"):
                    source.line(f"{tangent} = $plain({tangent})")
            given = "{" + ", ".join(f'"tangent_{n}": $tangent${n}' for n in self.differentiable) + "}"
            with source.block("try"):
                source.line(f"$found = $jvp_rule({', '.join(map(self._jvp_argument, self.plan.jvp.names))})")
            with source.block("except $Exception as $error"):
                source.line(f"$note_jvp($error, {given})")
                source.line("raise")
            source.line(f"return $read_tangent($found, $results[{self.results[0]!r}], {tuple_of(tangents)})")

    def _jvp_argument(self, name: str) -> str:
        asked = name.removeprefix("tangent_")
        if asked != name and asked in self.differentiable:
            return f"{name}=$tangent${asked}"
        if name in self.saved_values:
            return f"{name}=$ctx.kept_{name}"
        tensors = {one.name for one in self.schema.tensor_arguments if one.type == "Tensor"}
        if name in tensors:  # forward mode is off inside a jvp: an alias has no tangent
            return f"{name}=$values[{name!r}].detach()"
        return f"{name}=$primal_of($values[{name!r}])"
