"""Shapes: the line of an op, which kernels and fakes are held to, and from which other capabilities are derived."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from custom_autograd.registration.capability import Call, Capability
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.rule import ShapeOptions, ShapesRule, described_op

F = TypeVar("F", bound=str | Callable[..., Any])


class ShapeNotation(Capability):
    """The dimensions of the op's tensors."""

    name = "shapes"

    def describe(self, record: OpRecord) -> str:
        """Return where the line is, and the line."""
        rule = record.registrations.get(ShapesRule)
        return (
            "none: no line declares them (shapes=)" if rule is None else f"registered ({rule.location}): {rule.shown}"
        )

    def around_kernel(self, record: OpRecord, kernel: Call) -> Call:
        """Return a kernel that refuses tensors without the dimensions of the line."""
        described = described_op(record)
        if described is None:
            return kernel
        from custom_autograd.capabilities.shapes.registering import sized  # loaded for ops with a line

        return sized(record, described, kernel)


def outputs_of(options: ShapeOptions) -> tuple[str, ...]:
    """Return the names that a line has for outputs; none if there is no line, or none that can be read."""
    if not isinstance(options.shapes, str):
        return ()
    from custom_autograd.shapes.line_parser import NotationError, parse_line  # loaded for ops with a line

    try:
        return tuple(item.name for item in parse_line(options.shapes).outputs)
    except NotationError:  # raised again, with the op, when the line is checked
        return ()


def declared_rule(declaration: Declaration, options: ShapeOptions) -> ShapesRule | None:
    """Return the rule of an op that is declared with a line; None if it has none."""
    if (options.shapes, options.along, options.dtypes, options.flops, options.numbers) == (None,) * 5:
        return None
    from custom_autograd.capabilities.shapes import registering  # loaded for ops with a line

    return registering.declared_rule(declaration, options)


def register(record: OpRecord, shapes: F, options: ShapeOptions, *, replace: bool) -> F:
    """Register a line, or a function that returns one for some of the op's arguments."""
    from custom_autograd.capabilities.shapes import registering  # loaded for ops with a line

    return registering.register(record, shapes, options, replace=replace)
