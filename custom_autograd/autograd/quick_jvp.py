"""Writes the quick jvp of an op: a call of its rule in straight lines, where nothing is recorded at any level.

Every other case goes to the general jvp (jvp.py), which returns the same tangents and raises the same errors.
"""

from __future__ import annotations

from custom_autograd.autograd.function import FunctionWriter
from custom_autograd.calls.source import tuple_of
from custom_autograd.registration.rule_types import NamedRule


class QuickJvpWriter:
    """Writes it for one op.

    Attributes:
        is_possible: the rule takes every tangent by name and returns that of one tensor.
    """

    def __init__(self, function: FunctionWriter, *, keeps_metadata: bool) -> None:
        self.function = function
        self.source = function.source
        self._rule = function.plan.jvp
        self.is_possible = self._rule is not None and not keeps_metadata and self._is_plain(self._rule)

    def _is_plain(self, rule: NamedRule) -> bool:
        schema = self.function.schema
        if self.function.plan.drop_in is not None or self.function.has_lists or schema.mutated_arguments:
            return False
        (first, *others) = self.function.plan.results
        if others or first.type != "Tensor" or not first.is_differentiable or schema.is_view or schema.hidden_outputs:
            return False
        return "needs" not in rule.names and all(
            f"tangent_{name}" in rule.names for name in self.function.differentiable
        )

    def write(self) -> None:
        """Write it as a block at the beginning of the jvp."""
        assert self._rule is not None  # it is possible
        source, function = self.source, self.function
        tangents = [f"$tangent${name}" for name in function.differentiable]
        with source.block("if $ctx.known is None"):
            source.line("$values, $results = $ctx.forward")
            source.line("del $ctx.forward")
            for tangent in tangents:
                with source.block(f"if {tangent} is not None and ({tangent}.is_neg() or {tangent}.is_conj())"):
                    source.line(f"{tangent} = $plain({tangent})")
            given = "{" + ", ".join(f'"tangent_{n}": $tangent${n}' for n in function.differentiable) + "}"
            with source.block("try"):
                source.line(f"$found = $jvp_rule({', '.join(map(self._argument, self._rule.names))})")
            with source.block("except $Exception as $error"):
                source.line(f"$note_jvp($error, {given})")
                source.line("raise")
            source.line(f"return $read_tangent($found, $results[{function.results[0]!r}], {tuple_of(tangents)})")

    def _argument(self, name: str) -> str:
        asked = name.removeprefix("tangent_")
        if asked != name and asked in self.function.differentiable:
            return f"{name}=$tangent${asked}"
        if name in self.function.saved_values:
            return f"{name}=$ctx.kept_{name}"
        tensors = {one.name for one in self.function.schema.tensor_arguments if one.type == "Tensor"}
        if name in tensors:  # forward mode is off inside a jvp: an alias has no tangent
            return f"{name}=$values[{name!r}].detach()"
        return f"{name}=$primal_of($values[{name!r}])"
