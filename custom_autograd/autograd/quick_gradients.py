"""Writes how the quick backward takes the result of a rule apart, and looks at each gradient.

A gradient that is a plain tensor like its input is returned as it is; anything else goes to the reader (gradients.py),
which runs callables and raises the errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from custom_autograd.autograd.function import FunctionWriter, needs_of
from custom_autograd.calls.source import Source, tuple_of


class ReadingWriter:
    """Writes it for one op."""

    def __init__(self, function: FunctionWriter, *, is_checked: bool, keeps_metadata: bool, ctx: str = "$ctx") -> None:
        self.function = function
        self.ctx = ctx
        self.source: Source = function.source
        self.is_checked = is_checked
        self.keeps_metadata = keeps_metadata
        self._optional = {a.name for a in function.schema.arguments if a.is_optional}

    # ---------------------------------------------------------------------------------------------------- metadata

    def write_metadata(self) -> None:
        """Write the graph's metadata of all inputs, where lists make the position of each depend on the call."""
        asked = [name for name in self.function.differentiable if not self._is_at_hand(name)]
        if asked and self.is_checked and self.function.has_lists and not self.keeps_metadata:
            self.source.line("$known = $known_of($ctx)")

    def metadata_of_result(self, name: str) -> str:
        """Return source of what is known of a result: a tensor, or metadata."""
        if (
            name in self.function.saved_tensors
            and self.function.plan.is_always_saved(name)
            and not self.function.plan.clears_saved
        ):
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
        for name in self.kept_facts():
            is_given = f"{name} is not None and " if name in self._optional else ""
            self.source.line(f"$ctx.facts_{name} = {is_given}{name}.requires_grad and {facts_of(name)}")

    def write_integers(self) -> None:
        """Write, in the forward, that metadata is kept if the graph has none of an output: one without a gradient."""
        plan, results = self.function.plan, self.function.schema.results_by_grad
        filled = {results[n] for rule in plan.rules for n in rule.names if n in results and rule.fills(n)}
        if filled and len(plan.named_grads) > 1 and not self.keeps_metadata:
            are_floating = [
                f"$all_floating({name})" if self.function.is_list(name) else f"{name}.is_floating_point()"
                for name in sorted(filled)
            ]
            with self.source.block(f"if not ({' and '.join(are_floating)})"):
                self.source.line(f"$ctx.known = {self.function.metadata()}")

    def kept_facts(self) -> list[str]:
        """Return the inputs whose shape, dtype and device the forward keeps for the quick backward."""
        if not self.is_checked or self.keeps_metadata or self.function.has_lists:
            return []
        covered = [name for name in self.function.differentiable if name not in self.function.plan.uncovered]
        return [name for name in covered if not self._is_at_hand(name)]

    def _is_at_hand(self, name: str) -> bool:
        """Return True if an input is saved whenever its own gradient is needed, and still there after the rule."""
        plan = self.function.plan
        if plan.clears_saved or name not in self.function.saved_tensors or name not in plan.saved[name]:
            return False
        return name not in plan.saved_for_hidden.get(name, ())

    # ----------------------------------------------------------------------------------------------------- reading

    def write(self, index: int, inputs: Sequence[str], *, is_asked: bool) -> None:
        """Write how `$result` becomes one gradient per input of a rule.

        Args:
            index: of the rule.
            inputs: that it returns gradients of.
            is_asked: the rule is called only if one of them needs a gradient, and there are others.
        """
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
            needs = "{" + ", ".join(f'"{name}": {needs_of(name)}' for name in inputs) + "}"
            has_needed = f"$has_needed($result, $names_{index}, {needs})"
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
        if name in self.kept_facts():
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

    def write_nothing(self, inputs: Sequence[str]) -> None:
        """Write that inputs have no gradients, unless a rule is called for them."""
        self.source.line(f"{' = '.join(map(gradient_of, inputs))} = None")

    def write_return(self) -> None:
        """Write the gradients in the order of what the node takes."""
        function = self.function
        covered = [name for name in function.differentiable if name not in function.plan.uncovered]
        returned = [gradient_of(name) if name in covered else "None" for name in function.inputs]
        if function.has_lists:
            returned = [f"*$flatten_gradients({tuple_of(returned)}, $ctx.layout.inputs)"]
        self.source.line(f"return {', '.join(['None'] * len(function.lead) + returned)}")


def facts_of(tensor: str) -> str:
    """Return source of what a gradient has in common with its input."""
    return f"({tensor}.shape, {tensor}.dtype, {tensor}.device)"


def gradient_of(name: str) -> str:
    """Return source of the gradient that a rule returned for an input."""
    return f"$gradient${name}"
