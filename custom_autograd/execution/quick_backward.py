"""Writes the quick backward of an op: the most common case, in straight lines.

Most backward passes call each rule once, with gradients that have arrived, and find that what it returns fits. That is
written out here. Every other case goes to the backward of the generated Function, which handles them all, so that both
return the same gradients and raise the same errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from custom_autograd.execution.function import FunctionWriter, grad_of, needs_of
from custom_autograd.execution.source import dict_of
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.rule_types import GradientRule


@dataclass(frozen=True, slots=True)
class Incoming:
    """The gradient of one result, as the rules take it.

    Attributes:
        result: its name.
        is_list: it is a list of gradients.
        fills: whether zeros stand for it where none arrives, for each rule that names it.
    """

    result: str
    is_list: bool
    fills: frozenset[bool]

    @property
    def value(self) -> str:
        """Return source of the gradient."""
        return grad_of(self.result)

    @property
    def is_undefined(self) -> str:
        """Return source that is true where none arrives."""
        return f"$is_undefined({self.value})" if self.is_list else f"{self.value} is None"

    @property
    def is_defined(self) -> str:
        """Return source that is true where one arrives."""
        return f"not {self.is_undefined}" if self.is_list else f"{self.value} is not None"

    def is_missing(self, *, is_needed: bool) -> list[str]:
        """Return conditions, as source, under which it is zeros; a native node has resolved it already."""
        return [f"{self.value} is None"] if is_needed or len(self.fills) > 1 else []

    def is_odd(self, *, is_needed: bool) -> str:
        """Return source that is true where the general backward has to prepare it."""
        if self.is_list:
            may_be_none = self.fills == {False} and not is_needed
            return f"not $are_plain({self.value})" + (f" and not {self.is_undefined}" if may_be_none else "")
        lazy = f"{self.value}.is_neg() or {self.value}.is_conj()"
        if is_needed or len(self.fills) > 1:
            return f"{self.value} is None or {lazy}"
        return f"({self.value} is not None and ({lazy}))"


class QuickWriter:
    """Writes the quick backward of one op with gradient rules bound by name.

    Attributes:
        is_native: a native node calls it with what a ctx would hold, and runs the general backward itself.
    """

    def __init__(
        self, function: FunctionWriter, *, is_checked: bool, keeps_metadata: bool, is_native: bool = False
    ) -> None:
        self.function, self.source = function, function.source
        self.plan, self.schema = function.plan, function.schema
        self.is_checked, self.keeps_metadata = is_checked, keeps_metadata
        self.is_native, self.ctx = is_native, "$running" if is_native else "$ctx"
        self.result_of = self.schema.results_by_grad
        self.incoming = [one for one in map(self._incoming, dict.fromkeys(self.result_of.values())) if one.fills]
        self._optional = {a.name for a in self.schema.arguments if a.is_optional}

    def _incoming(self, result: str) -> Incoming:
        fills = [rule.fills(n) for rule in self.plan.rules for n in rule.names if self.result_of.get(n) == result]
        return Incoming(result, self.function.is_list(result), frozenset(fills))

    @property
    def is_possible(self) -> bool:
        """Return True if any rule takes a gradient."""
        return len(self.incoming) > 0

    def write(self) -> None:
        """Write it as `$quick`, or as `$native_quick`."""
        source, function = self.source, self.function
        name, parameters = ("$native_quick", self._native_parameters()) if self.is_native else ("$quick", self._ctx())
        with source.block(f"def {name}({parameters})"):
            if not self.is_native:
                function.unpack_grads()
                function.unpack_needs(self._needed())
            oddities = [*([] if self.is_native else ["$ctx.is_odd"]), *self._oddities()]
            if oddities:
                with source.block(f"if {' or '.join(oddities)}"):
                    source.line("return $NotImplemented" if self.is_native else f"return $backward({self._ctx()})")
            if not self.is_native:
                self._write_saved()
            self._write_metadata()
            for index, rule in enumerate(self.plan.rules):
                self._write_rule(index, rule)
            self._write_return()

    def _needed(self) -> str:
        """Return source of a tuple: by input, whether its gradient is needed. A node runs because one is."""
        whole = "$is_whole_backward() or $ctx.needs_input_grad.count(True) == 1"
        return f"($ctx.needs_input_grad if {whole} else {self.function.needed()})"

    def _ctx(self) -> str:
        return f"$ctx, {self.function.incoming()}"

    def _native_parameters(self) -> str:
        function = self.function
        needs = map(needs_of, function.differentiable)
        kept = (f"$kept_{name}" for name in function.saved_values)
        return ", ".join([function.incoming(), *function.saved_tensors, *needs, *kept])

    def _oddities(self) -> list[str]:
        """Return conditions, as source, under which the general backward answers."""
        is_alone = len(self.incoming) == 1
        undefined = " and ".join(one.is_undefined for one in self.incoming)
        asked = [] if is_alone else [f"({undefined})"]
        for one in self.incoming:
            asked += one.is_missing(is_needed=is_alone) if self.is_native else [one.is_odd(is_needed=is_alone)]
        asked += [self._incoming(name).is_defined for name in self.plan.unnamed_results]
        if self.plan.uncovered:
            asked.append(self.function.any_needed(self.plan.uncovered))
        if any(rule.is_once_differentiable for rule in self.plan.rules):
            asked.append("$is_grad_enabled()")
        return asked

    def _write_saved(self) -> None:
        source, saved = self.source, self.function.saved_tensors
        if saved and self.function.saves_lists():
            source.line(f"{', '.join(saved)}, = $restore_lists($ctx.saved_tensors, $ctx.saved_lengths)")
        elif saved:
            source.line(f"{', '.join(saved)}{',' if len(saved) == 1 else ''} = $ctx.saved_tensors")
        for name in saved:
            if name in self.function.results:  # the other inputs were made plain before the call
                with source.block(f"if $type({name}) is not $Tensor or {name}.is_conj() or {name}.is_neg()"):
                    source.line(f"{name} = $plain({name})")
        if saved and self.plan.clears_saved:
            # What a caller's variable holds cannot be freed by what it calls.
            source.line(f"$held = {{{', '.join(f'{name!r}: {name}' for name in saved)}}}")
            source.line(f"del {', '.join(saved)}")
            source.line("$free_saved($ctx)")

    def _write_rule(self, index: int, rule: GradientRule) -> None:
        source, inputs = self.source, rule.inputs or tuple(self.function.differentiable)
        if len(inputs) == len(self.function.differentiable):
            self._write_running(index, rule, inputs)
            return
        source.line(f"{' = '.join(map(gradient_of, inputs))} = None")
        with source.block(f"if {self.function.any_needed(inputs)}"):
            self._write_running(index, rule, inputs)

    def _write_running(self, index: int, rule: GradientRule, inputs: Sequence[str]) -> None:
        source = self.source
        for one in self.incoming:
            if any(self.result_of.get(name) == one.result for name in rule.names):
                self._write_absent(one)
        arguments = [self._argument(name) for name in rule.names]
        if not rule.is_positional:
            arguments = [f"{name}={value}" for name, value in zip(rule.names, arguments, strict=True)]
        with source.block("try"):
            source.line(f"$result = $rule_{index}({', '.join(arguments)})")
            self._write_reading(index, inputs, is_asked=len(inputs) < len(self.function.differentiable))
        with source.block("except $Exception as $error"):
            source.line(f"$note_{index}($error)")
            source.line("raise")

    def _write_absent(self, one: Incoming) -> None:
        """Write the value of a gradient that has not arrived, where that is not decided yet."""
        if len(self.incoming) == 1 or one.fills != {not one.is_list}:
            return
        with self.source.block(f"if {one.is_undefined}"):
            if one.is_list:
                self.source.line(f"{one.value} = None")
                return
            grads = ", ".join(other.value for other in self.incoming)
            known = self._metadata_of_result(one.result)
            self.source.line(f"{one.value} = $materialize(None, {known}, $first_tensor(({grads})))")

    def _argument(self, name: str) -> str:
        if name == "needs":
            return f"$Named({self.function.needs_dict()})"
        if name == "meta":
            return "$Named($ctx.known)"
        if name in self.result_of:
            return grad_of(self.result_of[name])
        if name in self.function.saved_tensors:
            return f"$held.pop({name!r})" if self.plan.clears_saved else name
        return f"$kept_{name}" if self.is_native else f"$ctx.kept_{name}"

    # ---------------------------------------------------------------------------------------------------- metadata

    def _write_metadata(self) -> None:
        """Write the graph's metadata of all inputs, where lists make the position of each depend on the call."""
        asked = [name for name in self.function.differentiable if not self._is_at_hand(name)]
        if asked and self.is_checked and self.function.has_lists and not self.keeps_metadata:
            self.source.line("$known = $known_of($ctx)")

    def _metadata_of_result(self, name: str) -> str:
        """Return source of what is known of a result: a tensor, or metadata."""
        if name in self.function.saved_tensors and self.plan.is_always_saved(name) and not self.plan.clears_saved:
            return name
        if self.keeps_metadata:
            return f'$ctx.known["{name}"]'
        if self.function.has_lists:
            return f'$known_of($ctx)["{name}"]'
        found = f"$output_metadata({self.ctx}, {self.function.results.index(name)})"
        return f'$ctx.known["{name}"] if $ctx.known is not None else {found}' if self.ctx == "$ctx" else found

    def _metadata_of_input(self, name: str) -> str:
        return f'$ctx.known["{name}"]' if self.keeps_metadata else f'$known["{name}"]'

    def write_facts(self) -> None:
        """Write, in the forward, what the quick backward compares the gradient of an input that is not saved with.

        The graph holds it too, and takes five times as long to return it.
        """
        for name in self._kept_facts():
            is_given = f"{name} is not None and " if name in self._optional else ""
            self.source.line(f"$ctx.facts_{name} = {is_given}{name}.requires_grad and {facts_of(name)}")

    def write_integers(self) -> None:
        """Write, in the forward, that metadata is kept if the graph has none of an output: one without a gradient."""
        plan, results = self.plan, self.result_of
        filled = {results[n] for rule in plan.rules for n in rule.names if n in results and rule.fills(n)}
        if filled and len(plan.named_grads) > 1 and not self.keeps_metadata:
            are_floating = [
                f"$all_floating({name})" if self.function.is_list(name) else f"{name}.is_floating_point()"
                for name in sorted(filled)
            ]
            with self.source.block(f"if not ({' and '.join(are_floating)})"):
                self.source.line(f"$ctx.known = {self.function.metadata()}")

    def _kept_facts(self) -> list[str]:
        """Return the inputs whose shape, dtype and device the forward keeps for the quick backward."""
        if not self.is_checked or self.keeps_metadata or self.function.has_lists:
            return []
        covered = [name for name in self.function.differentiable if name not in self.plan.uncovered]
        return [name for name in covered if not self._is_at_hand(name)]

    def _is_at_hand(self, name: str) -> bool:
        """Return True if an input is saved whenever its own gradient is needed, and still there after the rule."""
        plan = self.plan
        if plan.clears_saved or name not in self.function.saved_tensors or name not in plan.saved[name]:
            return False
        return name not in plan.saved_for_hidden.get(name, ())

    # ----------------------------------------------------------------------------------------------------- reading
    # A gradient that is a plain tensor like its input is returned as it is; anything else goes to the reader
    # (gradients.py), which runs callables and raises the errors.

    def _write_reading(self, index: int, inputs: Sequence[str], *, is_asked: bool) -> None:
        """Write how `$result` becomes one gradient per input of a rule."""
        if len(inputs) == 1:
            self._write_taking_one(index, inputs[0])
        else:
            self._write_taking_several(index, inputs)
        for name in inputs:
            if self.function.is_list(name):
                self._write_look_at_list(index, name)
            else:
                self._write_look(index, name, is_needed=is_asked and len(inputs) == 1)

    def _write_taking_one(self, index: int, name: str) -> None:
        source = self.source
        kind = "$type($result) is $list" if self.function.is_list(name) else "$type($result) is $Tensor"
        with source.block(f"if {kind}"):
            source.line(f"{gradient_of(name)} = $result")
        with source.block(f"elif $type($result) is $dict and $result.keys() == $names_{index}"):
            source.line(f"{gradient_of(name)} = $result[{name!r}]")
        with source.block("else"):
            source.line(f"{gradient_of(name)}, = $read_{index}({self.ctx}, $result, {self.function.needs_dict()})")

    def _write_taking_several(self, index: int, inputs: Sequence[str]) -> None:
        source, targets = self.source, ", ".join(map(gradient_of, inputs))
        with source.block(f"if $type($result) is $tuple and $len($result) == {len(inputs)}"):
            source.line(f"{targets} = $result")
        with source.block(f"elif $type($result) is $dict and $result.keys() == $names_{index}"):
            source.line(f"{targets} = {', '.join(f'$result[{name!r}]' for name in inputs)}")
        if any(map(self.function.is_list, inputs)):
            has_needed = f"$has_needed($result, $names_{index}, {dict_of(inputs, needs_of('{}'))})"
        else:
            given = " and ".join(f"({name!r} in $result or not {needs_of(name)})" for name in inputs)
            has_needed = f"{given} and $result.keys() <= $names_{index}"
        with source.block(f"elif $type($result) is $dict and {has_needed}"):
            source.line(f"{targets} = {', '.join(f'$result.get({name!r})' for name in inputs)}")
        with source.block("else"):
            source.line(f"{targets} = $read_{index}({self.ctx}, $result, {self.function.needs_dict()})")

    def _write_look(self, index: int, name: str, *, is_needed: bool) -> None:
        source, gradient = self.source, gradient_of(name)
        with contextlib.ExitStack() as blocks:
            if not is_needed:
                with source.block(f"if not {needs_of(name)}"):
                    source.line(f"{gradient} = None")
                blocks.enter_context(source.block("else"))
            with source.block(f"if $type({gradient}) is $FunctionType"):
                source.line(f"{gradient} = {gradient} if ($called := {gradient}()) is None else $called")
            odd = [f"$type({gradient}) is not $Tensor"]
            if self.is_checked:
                odd += self._differences(gradient, name)
            with source.block(f"if {' or '.join(odd)}"):
                source.line(f"{gradient} = $check_{index}({self.ctx}, {name!r}, {gradient}, True)")

    def _differences(self, gradient: str, name: str) -> list[str]:
        """Return conditions, as source, under which a gradient does not fit its input."""
        if name in self._kept_facts():
            return [f"{facts_of(gradient)} != $ctx.facts_{name}"]
        like = name
        if not self._is_at_hand(name):
            like = "$like"
            self.source.line(f"$like = {self._metadata_of_input(name)}")
        return [f"{gradient}.{fact} != {like}.{fact}" for fact in ("shape", "dtype", "device")]

    def _write_look_at_list(self, index: int, name: str) -> None:
        gradient, needs = gradient_of(name), needs_of(name)
        like = gradient if not self.is_checked else name if self._is_at_hand(name) else self._metadata_of_input(name)
        with self.source.block(f"if not $are_fit({gradient}, {needs}, {like})"):
            self.source.line(f"{gradient} = $check_{index}({self.ctx}, {name!r}, {gradient}, {needs})")

    # -------------------------------------------------------------------------------------------------- the results

    def _write_return(self) -> None:
        covered = [name for name in self.function.differentiable if name not in self.plan.uncovered]
        self.function.write_gradients(
            [gradient_of(name) if name in covered else "None" for name in self.function.inputs]
        )


def facts_of(tensor: str) -> str:
    """Return source of what a gradient has in common with its input."""
    return f"({tensor}.shape, {tensor}.dtype, {tensor}.device)"


def gradient_of(name: str) -> str:
    """Return source of the gradient that a rule returned for an input."""
    return f"$gradient${name}"
