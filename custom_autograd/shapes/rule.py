"""What is registered for the shapes of an op. What reads lines is loaded with the first op that has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import Function, Registration
from custom_autograd.registration.rules import bind_names

if TYPE_CHECKING:
    from custom_autograd.shapes.described import DescribedOp


DType: TypeAlias = torch.dtype | str
"""The dtype of an output: itself, the name of an input that has it or is it, or "wide": that of the inputs, at least
float32."""

WIDE = "wide"


@dataclass(frozen=True, slots=True)
class ShapeOptions:
    """The author's options for the shapes of an op, as `custom_op` and `register_shapes` take them.

    Attributes:
        shapes: the line, or None.
        along: with annotations of jaxtyping, the dimensions in brackets; None to leave annotations alone.
        dtypes, flops, numbers: as of `ShapesRule`.
    """

    shapes: str | None = None
    along: str | Sequence[str] | None = None
    dtypes: Mapping[str, DType] | None = None
    flops: str | None = None
    numbers: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ShapesRule(Registration):
    """The shapes of the tensors of an op, from `custom_op(shapes=...)` or `register_shapes`.

    Attributes:
        shapes: the line; None if a function returns it.
        function: returns the line for some of the op's arguments; None if the line is always the same.
        names: the arguments that the function takes.
        dtypes: by output, its dtype, where it is not that of the floating inputs.
        flops: the number of floating-point operations of a call, as an expression over the names; or None.
        numbers: by argument, what makes it for samples, or its value.
    """

    kind = "shapes"
    shapes: str | None
    function: Function | None = None
    names: tuple[str, ...] = ()
    dtypes: Mapping[str, DType] = field(default_factory=dict[str, DType])
    flops: str | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def functions(self) -> tuple[Function, ...]:
        """Return the function, if there is one."""
        return () if self.function is None else (self.function,)

    @property
    def settings(self) -> str:
        """Return the line and what it leaves open, but for samples."""
        dtypes = ", ".join(f"{name}: {dtype}" for name, dtype in self.dtypes.items())
        return "; ".join(part for part in (self.shapes, dtypes, self.flops) if part)

    @property
    def shown(self) -> str:
        """Return what reports and errors print: the line, or where the function is."""
        if self.shapes is not None:
            return self.shapes
        return f"a line for each ({', '.join(self.names)})"


def bind_arguments(
    declaration: Declaration, title: str, function: Function, special: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the arguments that a function takes, by name, as the author of the op or its schema has them."""
    known = dict.fromkeys([*adapter_of(declaration).argument_names(), *declaration.schema.argument_names])
    return bind_names(declaration, title, function, {name: f"argument '{name}'" for name in known}, special)


def described_op(record: OpRecord) -> DescribedOp | None:
    """Return an op with its shapes; None if none are registered."""
    rule = record.registrations.get(ShapesRule)
    if rule is None:
        return None
    found: DescribedOp | None = record.road.made.get("shapes")
    if found is None or found.rule is not rule:
        from custom_autograd.shapes.described import DescribedOp  # with the parser, only ops with a line need it

        record.road.made["shapes"] = found = DescribedOp(record.declaration, rule)
    return found


def check_sizes(record: OpRecord, values: Mapping[str, Any]) -> None:
    """Raise if the arguments of a call (Any: tensors and others) do not have the dimensions of the line."""
    described = described_op(record)
    if described is not None:
        described.sizes(values)
