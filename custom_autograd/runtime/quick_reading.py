"""Writes how the quick backward takes the result of a rule apart, and looks at each gradient.

A gradient that is a plain tensor like its input is returned as it is; anything else goes to the reader (gradients.py),
which runs callables and raises the errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from custom_autograd.runtime.function import FunctionWriter, needs_of
from custom_autograd.runtime.source import Source, tuple_of


class ReadingWriter:
    """Writes it for one op."""

    def __init__(self, function: FunctionWriter, *, is_checked: bool, keeps_metadata: bool) -> None:
        self.function = function
        self.source: Source = function.source
        self.is_checked = is_checked
        self.keeps_metadata = keeps_metadata

    # ---------------------------------------------------------------------------------------------------- metadata

    def write_metadata(self) -> None:
        """Writes what the graph knows of all inputs, where lists make the position of each depend on the call."""
        asked = [name for name in self.function.differentiable if not self._is_at_hand(name)]
        if asked and self.is_checked and self.function.has_lists and not self.keeps_metadata:
            self.source.line("$known = $known_of($ctx)")

    def metadata_of_result(self, name: str) -> str:
        """Return source of what is known of a result: a tensor, or metadata."""
        if self.function.is_always_saved(name):
            return name
        if self.keeps_metadata:
            return f'$ctx.known["{name}"]'
        if self.function.has_lists:
            return f'$known_of($ctx)["{name}"]'
        return f"$output_metadata($ctx, {self.function.results.index(name)})"

    def _metadata_of_input(self, name: str) -> str:
        if self.keeps_metadata:
            return f'$ctx.known["{name}"]'
        if self.function.has_lists:
            return f'$known["{name}"]'
        return f"$input_metadata($ctx, {self.function.inputs.index(name)})"

    def _is_at_hand(self, name: str) -> bool:
        """Whether an input is saved whenever its own gradient is needed."""
        plan = self.function.plan
        if name not in self.function.saved_tensors or name not in plan.saved[name]:
            return False
        return name not in plan.saved_for_hidden.get(name, ())

    # ----------------------------------------------------------------------------------------------------- reading

    def write(self, index: int, inputs: Sequence[str], *, is_asked: bool) -> None:
        """Writes how `$result` becomes one gradient per input of a rule.

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
            source.line(f"{gradient_of(name)}, = $read_{index}($ctx, $result, {self.function.needs_dict()})")

    def _write_taking_several(self, index: int, inputs: Sequence[str]) -> None:
        source, targets = self.source, ", ".join(map(gradient_of, inputs))
        with source.block(f"if $type($result) is $tuple and $len($result) == {len(inputs)}"):
            source.line(f"{targets} = $result")
        with source.block(f"elif $type($result) is $dict and $result.keys() == $names_{index}"):
            source.line(f"{targets} = {', '.join(f'$result[{name!r}]' for name in inputs)}")
        needs = "{" + ", ".join(f'"{name}": {needs_of(name)}' for name in inputs) + "}"
        with source.block(f"elif $type($result) is $dict and $has_needed($result, $names_{index}, {needs})"):
            source.line(f"{targets} = {', '.join(f'$result.get({name!r})' for name in inputs)}")
        with source.block("else"):
            source.line(f"{targets} = $read_{index}($ctx, $result, {self.function.needs_dict()})")

    def _write_look(self, index: int, name: str, *, is_needed: bool) -> None:
        source, gradient = self.source, gradient_of(name)
        with contextlib.ExitStack() as blocks:
            if not is_needed:
                with source.block(f"if not {needs_of(name)}"):
                    source.line(f"{gradient} = None")
                blocks.enter_context(source.block("else"))
            with source.block(f"if $type({gradient}) is $FunctionType"):
                source.line(f"{gradient} = {gradient}()")
            odd = [f"$type({gradient}) is not $Tensor"]
            if self.is_checked:
                like = name if self._is_at_hand(name) else "$like"
                if like != name:
                    source.line(f"$like = {self._metadata_of_input(name)}")
                odd += [f"{gradient}.{fact} != {like}.{fact}" for fact in ("shape", "dtype", "device")]
            with source.block(f"if {' or '.join(odd)}"):
                source.line(f"{gradient} = $check_{index}($ctx, {name!r}, {gradient}, True)")

    def _write_look_at_list(self, index: int, name: str) -> None:
        gradient, needs = gradient_of(name), needs_of(name)
        like = gradient if not self.is_checked else name if self._is_at_hand(name) else self._metadata_of_input(name)
        with self.source.block(f"if not $are_fit({gradient}, {needs}, {like})"):
            self.source.line(f"{gradient} = $check_{index}($ctx, {name!r}, {gradient}, {needs})")

    # -------------------------------------------------------------------------------------------------- the results

    def write_nothing(self, inputs: Sequence[str]) -> None:
        """Writes that inputs have no gradients, unless a rule is called for them."""
        self.source.line(f"{' = '.join(map(gradient_of, inputs))} = None")

    def write_return(self) -> None:
        """Writes the gradients in the order of what the node takes."""
        function = self.function
        covered = [name for name in function.differentiable if name not in function.plan.uncovered]
        returned = [gradient_of(name) if name in covered else "None" for name in function.inputs]
        if function.has_lists:
            returned = [f"*$flatten_gradients({tuple_of(returned)}, $ctx.layout.inputs)"]
        self.source.line(f"return {', '.join(['None'] * len(function.lead) + returned)}")


def gradient_of(name: str) -> str:
    """Source of the gradient that a rule returned for an input."""
    return f"$gradient${name}"
