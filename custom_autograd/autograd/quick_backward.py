"""Writes the quick backward of an op: the most common case, in straight lines.

Most backward passes call each rule once, with gradients that have arrived, and find that what it returns fits. That is
written out here. Every other case goes to the backward of the generated Function, which handles them all, so that both
return the same gradients and raise the same errors.
"""

from __future__ import annotations

from collections.abc import Sequence

from custom_autograd.autograd.function import FunctionWriter, grad_of, needs_of
from custom_autograd.autograd.quick_gradients import ReadingWriter
from custom_autograd.calls.source import Source
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
        """Return source that is true where the general backward has to prepare it.

        Args:
            is_needed: nothing may stand for it where none arrives.
        """
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

    def __init__(self, function: FunctionWriter, reading: ReadingWriter, *, is_native: bool = False) -> None:
        self.function = function
        self.is_native = is_native
        self.source: Source = function.source
        self.plan = function.plan
        self.schema = function.schema
        self.reading = reading
        self.result_of = self.schema.results_by_grad
        self.incoming = [one for one in map(self._incoming, dict.fromkeys(self.result_of.values())) if one.fills]

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
            self.reading.write_metadata()
            for index, rule in enumerate(self.plan.rules):
                self._write_rule(index, rule)
            self.reading.write_return()

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
        self.reading.write_nothing(inputs)
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
            self.reading.write(index, inputs, is_asked=len(inputs) < len(self.function.differentiable))
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
            known = self.reading.metadata_of_result(one.result)
            self.source.line(f"{one.value} = $zeros_of({known}, $first_tensor(({grads})))")

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
