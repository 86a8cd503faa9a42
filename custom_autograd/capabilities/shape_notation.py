"""Shapes: the line of an op, which kernels and fakes are held to, and from which other capabilities are derived."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace as replace_fields
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from custom_autograd.core.errors import CustomAutogradError, DeclarationError, KernelError, RegistrationError
from custom_autograd.core.locations import location_of, location_of_declaration
from custom_autograd.core.messages import advise, quote, show
from custom_autograd.core.option_types import check_type, listed
from custom_autograd.execution.bind import Binder
from custom_autograd.execution.source import Source, parameters_of, pass_on, tuple_of
from custom_autograd.registration.capability import Call, Capability, add
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.named_tuples import by_fields
from custom_autograd.schema.schema import Argument, Schema
from custom_autograd.shapes.rule import WIDE, ShapeOptions, ShapesRule, bind_arguments, described_op

if TYPE_CHECKING:
    from custom_autograd.shapes.described import DescribedOp

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
        return kernel if described is None else sized(record, described, kernel)


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
    _check_types(declaration, options, DeclarationError)
    if options.shapes is None and options.along is None:
        if options.dtypes or options.flops or options.numbers:
            problem = "dtypes=, flops= and numbers= add to a line of shapes, and there is none"
            raise declaration.error(DeclarationError, problem, do="give shapes=, or pass them to register_shapes")
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
        names = bind_arguments(declaration, "shapes rule", shapes, {})
        rule = replace_fields(_rule(location_of(shapes), None, options), function=shapes, names=names)
    add(record, _checked(declaration, rule, RegistrationError), replace=replace)
    return shapes  # pyright: ignore[reportReturnType]  # it is what was given


def _text(declaration: Declaration, options: ShapeOptions) -> str:
    """Return the line that was given, or that annotations say."""
    if options.shapes is not None and options.along is not None:
        problem = "the op has both shapes= and along=, which reads the line from annotations"
        raise declaration.error(DeclarationError, problem, do="give one: brackets in the line say the same")
    if options.shapes is not None:
        return options.shapes
    from custom_autograd.shapes.requirements import LineMismatch, line_of_annotations  # loaded for ops with a line

    refuse = partial(declaration.origin().error, DeclarationError)
    along = listed(refuse, "along", options.along or (), example="'d'")
    try:
        return line_of_annotations(declaration.function, declaration.schema, along)
    except LineMismatch as error:
        raise declaration.error(DeclarationError, error.problem, expected=error.expected, do=error.do) from None


def _rule(location: str, text: str | None, options: ShapeOptions) -> ShapesRule:
    return ShapesRule(location, text, None, (), dict(options.dtypes or {}), options.flops, dict(options.numbers or {}))


def _check_types(declaration: Declaration, options: ShapeOptions, kind: type[CustomAutogradError]) -> None:
    """Raise if an option has another type than it takes."""
    refuse, none = partial(declaration.origin().error, kind), type(None)
    check_type(refuse, "shapes", options.shapes, (str, none), "a line", example="'x: *b d -> out: *b d'")
    check_type(refuse, "dtypes", options.dtypes, (Mapping, none), "a dict by output", example="{'out': torch.int64}")
    check_type(refuse, "numbers", options.numbers, (Mapping, none), "a dict by argument", example="{'eps': 1e-6}")
    check_type(refuse, "flops", options.flops, (str, none), "an expression", example="'2*m*k*n'")


def _checked(declaration: Declaration, rule: ShapesRule, kind: type[CustomAutogradError]) -> ShapesRule:
    """Return a rule that can be of an op; raises an error of this class if it cannot."""
    from custom_autograd.shapes.described import DescribedOp  # loaded for ops with a line

    described = DescribedOp(declaration, rule, kind)
    _check_dtypes(declaration, rule, kind)
    _check_options(declaration, rule, kind)
    if rule.flops is not None:
        _check_flops(described, rule.flops, kind)
    return rule


def _check_dtypes(declaration: Declaration, rule: ShapesRule, kind: type[CustomAutogradError]) -> None:
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


def _check_options(declaration: Declaration, rule: ShapesRule, kind: type[CustomAutogradError]) -> None:
    names = declaration.schema.argument_names
    for name in rule.numbers:
        if name not in names:
            problem = f"numbers= names '{name}', which is not an argument of the op"
            raise declaration.origin(rule.where).error(kind, problem, expected=quote(names), do=advise(name, names))


def _check_flops(described: DescribedOp, flops: str, kind: type[CustomAutogradError]) -> None:
    """Raise if an expression cannot be read, or names what the line does not have."""
    from custom_autograd.shapes.notation import ExpressionError, names_in  # loaded for ops with a line

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


# Kernels that are called only with tensors that have the dimensions of the op's line, and that return its dtypes.
#
# def kernel(x, weight, eps):
#     key = (x.shape, x.dtype, weight.shape, weight.dtype)
#     if key not in known:             the last calls that were found to be right
#         return first(key, x, weight, eps)
#     return function(x, weight, eps)
#
# Native calls compare sizes themselves where that is simple (SizeCheck), and call the bare kernel.


MOST = 1024
"""How many kinds of calls are known of a kernel; further ones are looked at in each call."""

Function = Callable[..., Any]  # Any: takes and returns what the schema declares


def sized(record: OpRecord, described: DescribedOp, function: Function) -> Function:
    """Return a kernel that raises if tensors do not have the dimensions of the line, or results not its dtypes."""
    from custom_autograd.shapes.size_checks import SizeCheck  # loaded for ops with a line

    schema, known = described.declaration.schema, set[Hashable]()
    bind = Binder(schema)

    def first(key: Hashable, /, *args: Any, **kwargs: Any) -> Any:
        values = bind.given(*args, **kwargs)
        described.sizes(values)
        result = function(*args, **kwargs)
        _check_result_dtypes(record, described, values, result, function)
        if key is not None and len(known) < MOST:
            known.add(key)
        return result

    source = _source(schema, described.deciding)
    name = f"{described.declaration.name} shapes"
    values = {"function": function, "known": known, "first": first, "TypeError": TypeError}
    made: Function = source.compiled(name, values)["kernel"]
    made.kernel_function = function  # type: ignore[attr-defined]  # as of a watched kernel: see execution/watching.py
    made.size_check = SizeCheck(function, described)  # type: ignore[attr-defined]  # for native calls
    return made


def _source(schema: Schema, deciding: Collection[str]) -> Source:
    source = Source(schema.argument_names)
    passed = pass_on(schema, to_user=True)
    parts = [_key(argument, field) for argument in schema.tensor_arguments for field in ("shape", "dtype")]
    parts += [a.name for a in schema.arguments if a.name in deciding and not a.holds_tensors]
    with source.block(f"def $kernel({parameters_of(schema)})"):
        source.line(f"$key = {tuple_of(parts)}")
        with source.block("try"):
            source.line("$is_known = $key in $known")
        with source.block("except $TypeError"):  # a value of an argument that the line depends on has no hash
            source.line("$is_known, $key = False, None")
        with source.block("if not $is_known"):
            source.line(f"return $first($key, {passed})")
        source.line(f"return $function({passed})")
    return source


def _key(argument: Argument, field: str) -> str:
    """Return source of the shape or the dtype of an argument."""
    name = argument.name
    if argument.is_tensor_list:
        each = f"$tuple([None if $item is None else $item.{field} for $item in {name}])"
        return f"None if {name} is None else {each}" if argument.is_optional else each
    return f"None if {name} is None else {name}.{field}" if argument.is_optional else f"{name}.{field}"


def _check_result_dtypes(
    record: OpRecord, described: DescribedOp, values: Mapping[str, Any], result: Any, kernel: Function
) -> None:
    """Raise if an output does not have the dtype that `dtypes`, or the fake that follows from the line, says."""
    # Any: the arguments and the results of a kernel, of which those that are not tensors are refused later.
    from custom_autograd.shapes.described import find_dtype, follows_fake  # loaded for ops with a line

    schema, dtypes = described.declaration.schema, described.rule.dtypes
    is_fake = follows_fake(described, record, values)
    found = by_fields(schema.output_names, result) if len(schema.outputs) > 1 else [result]
    for output, value in zip(schema.outputs, found or (), strict=False):
        expected = find_dtype(described, output.name, values) if is_fake or output.name in dtypes else None
        if expected is None or not isinstance(value, Tensor) or value.dtype == expected:
            continue
        raise described.declaration.origin(described.where(described.line(values))).error(
            KernelError,
            f"the {record.kernels.describe(kernel)} returns another dtype as '{output.name}' than the op's line says",
            expected=f"{expected}, as {'dtypes= says' if output.name in dtypes else 'the inputs have'}",
            found=str(value.dtype),
            do=f"write dtypes={{'{output.name}': {value.dtype}}}, or the name of an input that always has it",
        )
