"""Registers the shapes of an op: a line, or a function that returns one, that fits the op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as replace_fields
from functools import partial
from typing import Any, TypeVar

import torch

from custom_autograd.core.errors import CustomAutogradError, DeclarationError, RegistrationError
from custom_autograd.core.locations import location_of, location_of_declaration
from custom_autograd.core.messages import advise, quote, show
from custom_autograd.core.option_types import check_type, listed
from custom_autograd.pytrees.op_adapter import adapter_of
from custom_autograd.registration import rules
from custom_autograd.registration.capability import add
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.annotations import line_of_annotations
from custom_autograd.shapes.contract import LineMismatch
from custom_autograd.shapes.described import DescribedOp
from custom_autograd.shapes.expressions import ExpressionError, names_in
from custom_autograd.shapes.rule import WIDE, ShapeOptions, Shapes

F = TypeVar("F", bound=str | Callable[..., Any])


def declared_rule(declaration: Declaration, options: ShapeOptions) -> Shapes | None:
    """Return the rule of an op that is declared with a line; None if it has none.

    Raises:
        DeclarationError: the line cannot be read, or does not fit the op.
    """
    _check_types(declaration, options, DeclarationError)
    if options.shapes is None and options.along is None:
        if options.dtypes or options.flops or options.numbers:
            raise _without_line(declaration)
        return None
    text = _text(declaration, options)
    return _checked(declaration, _rule(declaration.location, text, options), DeclarationError)


def register(record: OpRecord, shapes: F, options: ShapeOptions, *, replace: bool) -> F:
    """Register a line, or a function that returns one for some of the op's arguments."""
    declaration = record.declaration
    _check_types(declaration, options, RegistrationError)
    if isinstance(shapes, str):
        rule = _rule(location_of_declaration(None), shapes, options)
    else:
        rule = _rule_of_function(declaration, shapes, options)
    add(record, _checked(declaration, rule, RegistrationError), replace=replace)
    return shapes  # pyright: ignore[reportReturnType]  # it is what was given


def _rule_of_function(declaration: Declaration, function: Callable[..., Any], options: ShapeOptions) -> Shapes:
    known = dict.fromkeys([*adapter_of(declaration).argument_names(), *declaration.schema.argument_names])
    values = {name: f"argument '{name}'" for name in known}
    names = rules.bind_names(declaration, "shapes rule", function, values, {})
    return replace_fields(_rule(location_of(function), None, options), function=function, names=names)


def _text(declaration: Declaration, options: ShapeOptions) -> str:
    """Return the line that was given, or that annotations say."""
    if options.shapes is not None and options.along is not None:
        problem = "the op has both shapes= and along=, which reads the line from annotations"
        raise declaration.origin().error(DeclarationError, problem, do="give one: brackets in the line say the same")
    if options.shapes is not None:
        return options.shapes
    refuse = partial(declaration.origin().error, DeclarationError)
    along = listed(refuse, "along", options.along or (), example="'d'")
    try:
        return line_of_annotations(declaration.function, declaration.schema, along)
    except LineMismatch as error:
        raise declaration.origin().error(
            DeclarationError, error.problem, expected=error.expected, do=error.do
        ) from None


def _rule(location: str, text: str | None, options: ShapeOptions) -> Shapes:
    return Shapes(location, text, None, (), dict(options.dtypes or {}), options.flops, dict(options.numbers or {}))


def _check_types(declaration: Declaration, options: ShapeOptions, kind: type[CustomAutogradError]) -> None:
    """Raise if an option has another type than it takes."""
    refuse, none = partial(declaration.origin().error, kind), type(None)
    check_type(refuse, "shapes", options.shapes, (str, none), "a line", example="'x: *b d -> out: *b d'")
    check_type(refuse, "dtypes", options.dtypes, (Mapping, none), "a dict by output", example="{'out': torch.int64}")
    check_type(refuse, "numbers", options.numbers, (Mapping, none), "a dict by argument", example="{'eps': 1e-6}")
    check_type(refuse, "flops", options.flops, (str, none), "an expression", example="'2*m*k*n'")


def _checked(declaration: Declaration, rule: Shapes, kind: type[CustomAutogradError]) -> Shapes:
    """Return a rule that can be of an op; raises an error of this class if it cannot."""
    described = DescribedOp(declaration, rule, kind)
    _check_dtypes(declaration, rule, kind)
    _check_options(declaration, rule, kind)
    if rule.flops is not None:
        _check_flops(described, rule.flops, kind)
    return rule


def _without_line(declaration: Declaration) -> DeclarationError:
    problem = "dtypes=, flops= and numbers= add to a line of shapes, and there is none"
    return declaration.origin().error(DeclarationError, problem, do="give shapes=, or pass them to register_shapes")


def _check_dtypes(declaration: Declaration, rule: Shapes, kind: type[CustomAutogradError]) -> None:
    schema, origin = declaration.schema, declaration.origin(rule.where)
    outputs = [output.name for output in schema.fresh_outputs]
    tensors = [argument.name for argument in schema.tensor_arguments]
    dtypes = [argument.name for argument in schema.arguments if argument.type.startswith("ScalarType")]
    for name, dtype in rule.dtypes.items():
        if name not in outputs:
            problem = f"dtypes= names '{name}', which is not an output of the op"
            raise origin.error(kind, problem, expected=quote(outputs), do=advise(name, outputs))
        if not isinstance(dtype, torch.dtype) and dtype not in (WIDE, *tensors, *dtypes):
            raise origin.error(
                kind,
                f"dtypes= does not say what the dtype of '{name}' is",
                expected=f"a torch.dtype, '{WIDE}', or the name of a tensor: {quote(tensors)}",
                found=show(dtype),
            )


def _check_options(declaration: Declaration, rule: Shapes, kind: type[CustomAutogradError]) -> None:
    names = declaration.schema.argument_names
    for name in rule.numbers:
        if name not in names:
            problem = f"numbers= names '{name}', which is not an argument of the op"
            raise declaration.origin(rule.where).error(kind, problem, expected=quote(names), do=advise(name, names))


def _check_flops(described: DescribedOp, flops: str, kind: type[CustomAutogradError]) -> None:
    """Raise if an expression cannot be read, or names what the line does not have."""
    rule, schema = described.rule, described.declaration.schema
    origin = described.declaration.origin(rule.where)
    try:
        used = names_in(flops)
    except ExpressionError as error:
        problem = f"flops= cannot be read: {error}"
        raise origin.error(kind, problem, expected="such as '2*m*k*n'", found=show(flops)) from None
    valid: Sequence[str] = [] if rule.shapes is None else described.line({}).names()
    valid = [*valid, *(a.name for a in schema.arguments if a.type in ("int", "SymInt"))]
    unknown = [name for name in used if rule.shapes is not None and name not in valid]
    if unknown:
        raise origin.error(
            kind,
            f"flops= names '{unknown[0]}', which is not a dimension of the line",
            expected=quote(valid),
            found=show(flops),
            do=advise(unknown[0], valid),
        )
