"""Kernels that are called only with tensors that have the dimensions of the op's line.

def kernel(x, weight, eps):
    key = (x.shape, weight.shape)
    if key not in known:             the shapes of the last calls that were found to be right
        check(key, x, weight, eps)
    return function(x, weight, eps)

Native calls compare sizes themselves where that is simple (SizeCheck), and call the bare kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any

from custom_autograd.calls.bind import Binder
from custom_autograd.calls.passing import arguments_of
from custom_autograd.calls.source import Source, compile_source, tuple_of
from custom_autograd.core.schema import Argument, Schema
from custom_autograd.registration.called_by_position import keywords_of, positional_of
from custom_autograd.shapes.described import DescribedOp
from custom_autograd.shapes.size_checks import SizeCheck

MOST = 1024
"""How many kinds of shapes are known of a kernel; further ones are looked at in each call."""

Function = Callable[..., Any]  # Any: takes and returns what the schema says


def sized(described: DescribedOp, function: Function) -> Function:
    """Return a kernel that raises ShapeError for tensors without the dimensions of the line."""
    schema, known = described.declaration.schema, set[Hashable]()
    bind = Binder(schema)

    def check(key: Hashable, /, *args: Any, **kwargs: Any) -> None:
        described.sizes(bind.given(*args, **kwargs))
        if key is not None and len(known) < MOST:
            known.add(key)

    source = _source(schema, described.deciding)
    name = f"{described.declaration.name} shapes"
    values = {"function": function, "known": known, "check": check, "TypeError": TypeError}
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
    parts = [_key(argument) for argument in schema.tensor_arguments]
    parts += [a.name for a in schema.arguments if a.name in deciding and not a.holds_tensors]
    with source.block(f"def $kernel({', '.join(parameters)})"):
        source.line(f"$key = {tuple_of(parts)}")
        with source.block("try"):
            source.line("$is_known = $key in $known")
        with source.block("except $TypeError"):  # a value of an argument that the line depends on has no hash
            source.line("$is_known, $key = False, None")
        with source.block("if not $is_known"):
            source.line(f"$check($key, {passed})")
        source.line(f"return $function({passed})")
    return source


def _key(argument: Argument) -> str:
    """Return source of what is known of an argument by its shape."""
    name = argument.name
    if argument.is_tensor_list:
        each = f"$tuple([None if $item is None else $item.shape for $item in {name}])"
        return f"None if {name} is None else {each}" if argument.is_optional else each
    return f"None if {name} is None else {name}.shape" if argument.is_optional else f"{name}.shape"
