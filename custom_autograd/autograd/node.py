"""Writes the node of a call that needs no dispatcher: its forward for one kernel, in straight lines.

The node is that of the generated Function (function.py), with the same name and the same attributes on ctx. Its
forward runs the kernel itself. Its backward is the quick one (quick_backward.py), where there is one.
"""

from __future__ import annotations

from custom_autograd.autograd.function import FunctionWriter
from custom_autograd.autograd.native_nodes import keeps_metadata, uses_own_context
from custom_autograd.autograd.plan import SAVED_VALUES
from custom_autograd.autograd.quick_backward import QuickWriter
from custom_autograd.autograd.quick_gradients import ReadingWriter
from custom_autograd.calls.kernel_call import write_call_or_another
from custom_autograd.calls.passing import call_kernel
from custom_autograd.calls.reading import write_reading
from custom_autograd.calls.source import Source, tuple_of


class NodeWriter:
    """Writes the node of one op; of one that mutates, which always needs the dispatcher, the quick backward only.

    Attributes:
        has_native_quick: native nodes need a quick backward of their own.
    """

    def __init__(self, function: FunctionWriter, *, is_checked: bool, is_strict: bool, has_native_quick: bool) -> None:
        self.function = function
        self.is_strict = is_strict  # gradients that are not needed are looked at, too
        self.source: Source = function.source
        self.plan = function.plan
        self.schema = function.schema
        self.is_checked = is_checked
        self.keeps_metadata = keeps_metadata(self.plan, is_strict=is_strict)
        self.reading = ReadingWriter(function, is_checked=is_checked, keeps_metadata=self.keeps_metadata)
        self.quick = QuickWriter(function, self.reading)
        self.has_native_quick = has_native_quick

    def write(self) -> None:
        """Write `$quick`, and `$make_node`, which makes the forward for a kernel."""
        has_quick = self._write_quick()
        if has_quick:
            self.source.lines("", "")
        if self.has_native_quick:
            self._write_native_quick()
        if self.schema.mutated_arguments:
            return
        source = self.source
        with source.block("def $make_node($function)"):
            source.line('"""The forward of a call that needs no dispatcher, for one kernel."""')
            source.line()
            with source.block(f"def $forward({', '.join(['$ctx', *self.function.parameters()])})"):
                self._write_forward(keeps_facts=has_quick and self.plan.drop_in is None)
            source.line()
            source.line("return $forward")
        source.lines("", "")
        if self.function.has_lists:
            self._write_list_apply()
            source.lines("", "")

    def _write_native_quick(self) -> None:
        """Write the quick backward of native nodes; they run a rule that takes one gradient by themselves."""
        reading = ReadingWriter(self.function, is_checked=False, keeps_metadata=False, ctx="$running")
        QuickWriter(self.function, reading, is_native=True).write()
        self.source.lines("", "")

    def _write_quick(self) -> bool:
        """Write a quick backward; returns False if the op can have none."""
        if self.plan.drop_in is not None:
            has_one = uses_own_context(self.plan) and not self.schema.mutated_arguments
            if has_one:
                self._write_quick_drop_in()
            return has_one
        if self.is_strict:
            return False
        if self.quick.is_possible:
            self.quick.write()
        return self.quick.is_possible

    def _write_forward(self, *, keeps_facts: bool) -> None:
        source, results = self.source, self.function.results
        if self.function.has_lists:
            source.line(f"{', '.join(self.function.inputs)}, = $restore_lists($flat, $layout.inputs)")
        write_call_or_another(source, call_kernel(self.schema))
        if self.schema.may_return_inputs:
            source.line("$read_result = $read_recorded")
        write_reading(source, self.schema, str(self.is_checked))
        source.line(f"{', '.join(results)} = $result")
        if self.function.has_lists:
            source.line("$ctx.layout = $layout")
            source.line(f"$output = $layout.flatten_outputs({tuple_of(results)}, {self.function.list_flags()})")
        if self.plan.drop_in is not None and uses_own_context(self.plan):
            self._write_own_context()
        else:
            if self.plan.drop_in is not None or not self.function.saves_always():
                self.function.unpack_needs()
            self.function.write_context(keeps_metadata=self.keeps_metadata)
            if keeps_facts:
                self.reading.write_facts()
            self.reading.write_integers()
        source.line(f"return {'$output' if self.function.has_lists else '$result'}")

    def _write_list_apply(self) -> None:
        """Write `apply` for ops with lists: spread them out, and gather the results again."""
        source, schema, results = self.source, self.schema, self.function.results
        with source.block("def $spread($apply_node)"):
            with source.block(f"def $apply({', '.join(schema.argument_names)})"):
                flags = tuple_of([str(argument.is_tensor_list) for argument in schema.arguments])
                source.line(f"$flat, $lengths = $flatten_lists({tuple_of(self.function.inputs)}, {flags})")
                source.line("$layout = $Layout($lengths)")
                source.line("$results = $apply_node($layout, *$flat)")
                source.line(f"{', '.join(results)}, = $restore_lists($results, $layout.outputs)")
                source.line(f"return {results[0] if len(results) == 1 else tuple_of(results)}")
            source.line("return $apply")

    def _write_quick_drop_in(self) -> None:
        """Write the call of the rule with torch's own ctx; the engine checks what it returns."""
        source, inputs, grads = self.source, self.function.inputs, self.function.incoming()
        lazy = [f"({name} is not None and ({name}.is_neg() or {name}.is_conj()))" for name in grads.split(", ")]
        with source.block(f"def $quick($ctx, {grads})"):
            odd = [*lazy, f"$hasattr($ctx, '{SAVED_VALUES}')", "not $is_whole_backward()"]
            with source.block(f"if {' or '.join(odd)}"):
                source.line(f"return $backward($ctx, {grads})")
            with source.block("try"):
                source.line(f"$result = $rule_0($ctx, {grads})")
            with source.block("except $Exception as $error"):
                source.line("$note_0($error)")
                source.line("raise")
            fits = [f"$type($result) is $tuple and $len($result) == {len(inputs)}"]
            for index, name in enumerate(inputs):
                is_tensor = f" or $type($result[{index}]) is $Tensor" if name in self.function.differentiable else ""
                fits.append(f"($result[{index}] is None{is_tensor})")
            with source.block(f"if {' and '.join(fits)}"):
                source.line("return $result")
            source.line("return $drop_in.in_order($result, $ctx.needs_input_grad)")

    def _write_own_context(self) -> None:
        """Run the setup_context of a drop-in rule on torch's own ctx."""
        source, drop_in = self.source, self.plan.drop_in
        if drop_in is None or drop_in.setup_context is None:
            return
        outputs = [output.name for output in self.schema.outputs]
        output = outputs[0] if len(outputs) == 1 else tuple_of(outputs)
        inputs = tuple_of(self.function.converted())
        source.line(f"$marked = $mark({tuple_of(outputs)})")  # computed_contexts.py
        source.line("$set_grad_enabled(True)")  # NOTE [setup_context is recorded] in drop_in.py
        with source.block("try"):
            source.line(f"$setup($ctx, {inputs}, {output})")
        with source.block("except $Exception as $error"):
            source.line("$note_0($error)")
            source.line("raise")
        source.line("$set_grad_enabled(False)")
        source.line("$unmark($marked)")
        with source.block("for $tensor in $ctx.to_save or ()"), source.block("if $type($tensor) is not $Tensor"):
            source.line("$check_saved($ctx.to_save)")
        with source.block("if $ctx.__dict__"):
            source.line("$drop_in.park($ctx)")
        with source.block("if $ctx.to_save"):
            source.line(f"$ctx.to_save = $drop_in.forbid_following($ctx.to_save, {inputs}, {output})")
