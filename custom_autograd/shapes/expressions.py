"""Expressions over the names of a line, such as "2*b*i*o": numbers, names, + - * // ** and parentheses."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {  # Any: ints, symbolic ones too
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}


class ExpressionError(ValueError):
    """An expression cannot be read."""


def names_in(text: str) -> tuple[str, ...]:
    """Return the names that an expression uses.

    Raises:
        ExpressionError: it cannot be read.
    """
    return tuple(dict.fromkeys(node.id for node in ast.walk(_parse(text)) if isinstance(node, ast.Name)))


def evaluate(text: str, sizes: Mapping[str, Any]) -> Any:  # Any: ints, symbolic ones too
    """Return the value of an expression.

    Raises:
        KeyError: a name has no size.
    """
    return _value(_parse(text), sizes)


@functools.lru_cache(maxsize=256)
def _parse(text: str) -> ast.expr:
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, TypeError, AttributeError) as error:
        raise ExpressionError("it is not an expression") from error
    _check(body)
    return body


def _check(node: ast.expr) -> None:
    if isinstance(node, ast.BinOp):
        if type(node.op) not in OPERATORS:
            raise ExpressionError(f"'{ast.unparse(node)}' uses something other than + - * // **")
        _check(node.left)
        _check(node.right)
    elif not isinstance(node, ast.Name) and not (isinstance(node, ast.Constant) and type(node.value) is int):
        raise ExpressionError(f"'{ast.unparse(node)}' is neither a name nor an integer")


def _value(node: ast.expr, sizes: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    if isinstance(node, ast.Name):
        return sizes[node.id]
    assert isinstance(node, ast.Constant)  # nothing else is let through
    return node.value
