"""Kernels that are called only with tensors that have the dimensions of the op's line, and that return its dtypes.

def kernel(x, weight, eps):
    key = (x.shape, x.dtype, weight.shape, weight.dtype)
    if key not in known:             the last calls that were found to be right
        return first(key, x, weight, eps)
    return function(x, weight, eps)

Native calls compare sizes themselves where that is simple (SizeCheck), and call the bare kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

from torch import Tensor

from custom_autograd.calls.bind import Binder
from custom_autograd.calls.passing import arguments_of
from custom_autograd.calls.source import Source, compile_source, tuple_of
from custom_autograd.core.errors import KernelError
from custom_autograd.core.named_tuples import by_fields
from custom_autograd.core.schema import Argument, Schema
from custom_autograd.registration.called_by_position import keywords_of, positional_of
from custom_autograd.registration.registry import OpRecord
from custom_autograd.shapes.described import DescribedOp
from custom_autograd.shapes.fakes import find_dtype, follows_fake
from custom_autograd.shapes.size_checks import SizeCheck

MOST = 1024
"""How many kinds of calls are known of a kernel; further ones are looked at in each call."""

Function = Callable[..., Any]  # Any: takes and returns what the schema says


def sized(record: OpRecord, described: DescribedOp, function: Function) -> Function:
    """Return a kernel that raises if tensors do not have the dimensions of the line, or results not its dtypes."""
    schema, known = described.declaration.schema, set[Hashable]()
    bind = Binder(schema)

    def first(key: Hashable, /, *args: Any, **kwargs: Any) -> Any:
        values = bind.given(*args, **kwargs)
        described.sizes(values)
        result = function(*args, **kwargs)
        _check_dtypes(record, described, values, result, function)
        if key is not None and len(known) < MOST:
            known.add(key)
        return result

    source = _source(schema, described.deciding)
    name = f"{described.declaration.name} shapes"
    values = {"function": function, "known": known, "first": first, "TypeError": TypeError}
    namespace = compile_source(source.text, name, source.namespace(values))
    made: Function = namespace[source.own("kernel")]
    made.kernel_function = function  # type: ignore[attr-defined]  # as of a watched kernel: see calls/watching.py
    made.size_check = SizeCheck(function, described)  # type: ignore[attr-defined]  # for native calls
    return made


def _source(schema: Schema, deciding: Collection[str]) -> Source:
    source = Source(schema.argument_names)
    keywords = keywords_of(schema)
    has_star = any(argument.is_variadic for argument in schema.arguments)
    parameters = [*positional_of(schema), *(["*"] if keywords and not has_star else []), *keywords]
    passed = arguments_of(schema, {a.name: "*" * a.is_variadic + a.name for a in schema.arguments})
    parts = [_key(argument, field) for argument in schema.tensor_arguments for field in ("shape", "dtype")]
    parts += [a.name for a in schema.arguments if a.name in deciding and not a.holds_tensors]
    with source.block(f"def $kernel({', '.join(parameters)})"):
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


def _check_dtypes(
    record: OpRecord, described: DescribedOp, values: Mapping[str, Any], result: Any, kernel: Function
) -> None:
    """Raise if an output does not have the dtype that `dtypes`, or the fake that follows from the line, says.

    Any: the arguments and the results of a kernel; those that are not tensors are refused later.
    """
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
