"""Writes the forward and the backward of a call that needs no dispatcher: straight lines, for one kernel.

The node is that of the generated Function (function.py), with the same name and the same attributes on ctx. Its
forward runs the kernel itself. Its backward (`quick`) does what is most common, which is to call each rule once and to
find that what it returns fits, and leaves everything else to the Function's own.
"""

from __future__ import annotations

from custom_autograd.registration.rules import Rule, grad_names, sole_result
from custom_autograd.runtime.direct import write_call_or_another, write_reading
from custom_autograd.runtime.drop_in import PARCEL
from custom_autograd.runtime.function import FunctionWriter
from custom_autograd.runtime.passing import call_kernel
from custom_autograd.runtime.source import Source, tuple_of


class NodeWriter:
    """Writes the node of one op that does not mutate."""

    def __init__(self, function: FunctionWriter, *, is_checked: bool) -> None:
        self.function = function
        self.source: Source = function.source
        self.plan = function.plan
        self.schema = function.schema
        self.is_checked = is_checked
        self.has_quick_backward = self._has_quick_backward()

    def write(self) -> None:
        """Writes a function that makes both for one kernel."""
        source = self.source
        with source.block("def $make_node($function)"):
            source.line('"""The node of a call that needs no dispatcher, for one kernel."""')
            source.line()
            with source.block(f"def $forward({', '.join(['$ctx', *self.function.parameters()])})"):
                self._write_forward()
            source.line()
            if self.has_quick_backward:
                with source.block(f"def $quick($ctx, {', '.join(f'grad_{name}' for name in self.function.results)})"):
                    self._write_quick()
                source.line()
            source.line(f"return $forward, {'$quick' if self.has_quick_backward else 'None'}")
        if self.function.has_lists:
            source.lines("", "")
            self._write_list_apply()

    def _write_forward(self) -> None:
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
        if self.plan.drop_in is not None and self._uses_own_context():
            self._write_own_context()
        else:
            if self.plan.drop_in is not None or not self.function.saves_always():
                self.function.unpack_needs()
            self.function.write_context(keeps_metadata=self._keeps_metadata())
        source.line(f"return {'$output' if self.function.has_lists else '$result'}")

    def _keeps_metadata(self) -> bool:
        """Whether metadata must be kept; else the graph knows them: see `known_of` in derivatives.py."""
        wants = any(rule.wants_meta for rule in self.plan.rules)
        return wants or any(v.type not in ("Tensor", "Tensor[]") for v in self.schema.outputs)

    def _write_list_apply(self) -> None:
        """Writes `apply` for ops with lists: spreads them out, and gathers the results again."""
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

    def _has_quick_backward(self) -> bool:
        plan = self.plan
        if plan.drop_in is not None:
            return self._uses_own_context()
        if not plan.rules or plan.uncovered or plan.unnamed_results:
            return False
        return not self.function.has_lists and all(
            v.type in ("Tensor", "Tensor?") for v in self.schema.tensor_arguments
        )

    def _write_quick(self) -> None:
        if self.plan.drop_in is not None:
            self._write_quick_drop_in()
            return
        source, schema = self.source, self.schema
        grads = [f"grad_{result.name}" for result in self.plan.results if result.is_differentiable]
        saved = self.function.saved_tensors
        computed = [n for n in saved if n in schema.output_names]
        asked = [f"{name} is None" for name in grads] + [f"{name}.is_neg() or {name}.is_conj()" for name in grads]
        if any(rule.is_once_differentiable for rule in self.plan.rules):
            asked.append("$is_grad_enabled()")
        with source.block(f"if {' or '.join(asked)}"):
            source.line(f"return $backward($ctx, {', '.join(f'grad_{name}' for name in self.function.results)})")
        if saved:
            source.line(f"{', '.join(saved)}{',' if len(saved) == 1 else ''} = $ctx.saved_tensors")
        for name in computed:
            source.line(f"{name} = $plain({name})")
        self.function.unpack_needs()
        for index, rule in enumerate(self.plan.rules):
            self._write_rule(index, rule)
        differentiable = self.function.differentiable
        returned = [f"$gradient_{name}" if name in differentiable else "None" for name in self.function.inputs]
        source.line(f"return {', '.join(returned)}")

    def _write_quick_drop_in(self) -> None:
        """The rule is called with torch's own ctx; what it returns goes to the engine, which is as lenient as it is."""
        source, inputs = self.source, self.function.inputs
        grads = [f"grad_{name}" for name in self.function.results]
        lazy = [f"({name} is not None and ({name}.is_neg() or {name}.is_conj()))" for name in grads]
        with source.block(f"if {' or '.join(lazy)} or hasattr($ctx, '{PARCEL}')"):
            source.line(f"return $backward($ctx, {', '.join(grads)})")
        with source.block("try"):
            source.line(f"$result = $rule_0($ctx, {', '.join(grads)})")
        with source.block("except Exception as $error"):
            source.line("$note_0($error)")
            source.line("raise")
        fits = [f"type($result) is tuple and len($result) == {len(inputs)}"]
        for index, name in enumerate(inputs):
            is_tensor = f" or type($result[{index}]) is $Tensor" if name in self.function.differentiable else ""
            fits.append(f"($result[{index}] is None{is_tensor})")
        with source.block(f"if {' and '.join(fits)}"):
            source.line("return $result")
        source.line("return $drop_in.in_order($result, $ctx.needs_input_grad)")

    def _uses_own_context(self) -> bool:
        """Whether a drop-in rule can be given torch's own ctx: there is one entry per argument in all it holds."""
        has_keywords = any(argument.is_keyword_only for argument in self.schema.arguments)
        is_plain = all(r.type == "Tensor" and r.is_differentiable for r in self.plan.results)
        return is_plain and not self.function.has_lists and not has_keywords

    def _write_own_context(self) -> None:
        """Runs the setup_context of a drop-in rule on torch's own ctx."""
        source, drop_in = self.source, self.plan.drop_in
        if drop_in is None or drop_in.setup_context is None:
            return
        outputs = [output.name for output in self.schema.outputs]
        output = outputs[0] if len(outputs) == 1 else tuple_of(outputs)
        with source.block("try"):
            source.line(f"$setup($ctx, {tuple_of(self.function.converted())}, {output})")
        with source.block("except Exception as $error"):
            source.line("$note_0($error)")
            source.line("raise")
        with source.block("for $tensor in $ctx.to_save or ()"), source.block("if type($tensor) is not $Tensor"):
            source.line("$check_saved($ctx.to_save)")
        with source.block("if $ctx.__dict__"):
            source.line("$drop_in.park($ctx)")

    def _write_rule(self, index: int, rule: Rule) -> None:
        source = self.source
        inputs = list(rule.inputs or self.function.differentiable)
        names = {result: name for name, result in grad_names(self.schema).items()}
        sole = sole_result(self.schema)
        arguments = [self._argument(name, names, sole) for name in rule.names]
        if not rule.is_positional:
            arguments = [f"{name}={value}" for name, value in zip(rule.names, arguments, strict=True)]
        is_partial = len(inputs) < len(self.function.differentiable)
        if is_partial:
            source.line(f"{' = '.join(f'$gradient_{name}' for name in inputs)} = None")
        if not is_partial:
            self._write_running(index, inputs, arguments)
            return
        with source.block(f"if {' or '.join(f'needs_{name}' for name in inputs)}"):
            self._write_running(index, inputs, arguments)

    def _write_running(self, index: int, inputs: list[str], arguments: list[str]) -> None:
        source = self.source
        with source.block("try"):
            source.line(f"$result = $rule_{index}({', '.join(arguments)})")
        with source.block("except Exception as $error"):
            source.line(f"$note_{index}($error)")
            source.line("raise")
        self._write_reading(index, inputs)

    def _argument(self, name: str, results: dict[str, str], sole: str | None) -> str:
        if name == "needs":
            return f"$Named({self.function.needs_dict()})"
        if name == "meta":
            return "$Named($ctx.known)"
        if name == "grad" and sole is not None:
            return f"grad_{sole}"
        if name in results:
            return name
        return name if name in self.function.saved_tensors else f"$ctx.kept_{name}"

    def _write_reading(self, index: int, inputs: list[str]) -> None:
        """Takes the result of a rule apart, and looks at each gradient."""
        source = self.source
        if len(inputs) == 1:
            source.line(f"$gradient_{inputs[0]} = $result")
            with source.block("if type($result) is dict"):
                source.line(f"$gradient_{inputs[0]} = $read_{index}($ctx, $result, {self.function.needs_dict()})[0]")
        else:
            targets = ", ".join(f"$gradient_{name}" for name in inputs)
            with source.block(f"if type($result) is tuple and len($result) == {len(inputs)}"):
                source.line(f"{targets} = $result")
            with source.block(f"elif type($result) is dict and $result.keys() == $names_{index}"):
                source.line(f"{targets} = {', '.join(f'$result[{name!r}]' for name in inputs)}")
            with source.block("else"):
                source.line(f"{targets} = $read_{index}($ctx, $result, {self.function.needs_dict()})")
        for name in inputs:
            self._write_check(index, name)

    def _write_check(self, index: int, name: str) -> None:
        source = self.source
        gradient = f"$gradient_{name}"
        with source.block(f"if not needs_{name}"):
            source.line(f"{gradient} = None")
        with source.block("else"):
            odd = [f"type({gradient}) is not $Tensor"]
            if self.is_checked:
                like = name if self._is_at_hand(name) else "$like"
                if like != name:
                    source.line(f"$like = $input_metadata($ctx, {self.function.inputs.index(name)})")
                odd += [f"{gradient}.{fact} != {like}.{fact}" for fact in ("shape", "dtype", "device")]
            with source.block(f"if {' or '.join(odd)}"):
                source.line(f"{gradient} = $check_{index}($ctx, {name!r}, {gradient})")

    def _is_at_hand(self, name: str) -> bool:
        """Whether an input is saved whenever its own gradient is needed."""
        return name in self.function.saved_tensors and name in self.plan.saved[name]
