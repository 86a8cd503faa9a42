"""Reads and changes expressions and statements that libcst has parsed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias, cast

import libcst as cst
import libcst.matchers as m

Values: TypeAlias = "dict[str, cst.BaseExpression]"

TENSOR = re.compile(r"\bTensor\b")
BLANK = (cst.EmptyLine(indent=False), cst.EmptyLine(indent=False))
"""Two blank lines."""


class NotMechanical(Exception):  # noqa: N818 - the text is a reason
    """Source stays as it is, for the reason in the text."""


def code(node: cst.CSTNode) -> str:
    """Return the source of a node."""
    return cst.Module([]).code_for_node(node)


def last_name(node: cst.CSTNode) -> str:
    """Return `b` for `b` and for `a.b`; an empty string for any other expression."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def parse_statements(texts: Sequence[str], lines: Sequence[cst.EmptyLine]) -> list[cst.BaseStatement]:
    """Return statements from their source, with lines before the first."""
    first, *rest = map(cst.parse_statement, texts)
    return [cast(cst.BaseStatement, first.with_changes(leading_lines=lines)), *rest]


class _Names(cst.CSTVisitor):
    """Collects the variables in code, but not attributes and keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, None] = {}

    def visit_Name(self, node: cst.Name) -> None:
        self.found[node.value] = None

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False


def names_in(node: cst.CSTNode) -> list[str]:
    """Return the variables in code, without attributes and keywords."""
    names = _Names()
    node.visit(names)
    return list(names.found)


def targets_in(node: cst.CSTNode) -> list[str]:
    """Return the variables that code assigns to, once for each assignment."""
    kinds = m.AssignTarget() | m.AugAssign() | m.For() | m.NamedExpr() | m.AnnAssign() | m.AsName() | m.FunctionDef()
    targets = [getattr(one, "target", getattr(one, "name", None)) for one in m.findall(node, kinds)]
    return [name for target in targets for name in _variables(target)]


def _variables(target: object) -> list[str]:
    if isinstance(target, (cst.Tuple, cst.List)):
        return [name for element in target.elements for name in _variables(element.value)]
    return [target.value] if isinstance(target, cst.Name) else []


def elements_of(value: cst.BaseExpression | None) -> list[cst.BaseExpression] | None:
    """Return the elements of a tuple such as `(x, *(None,) * 2)` or `(x,) + (None, None)`; None if it is not one."""
    if isinstance(value, cst.Tuple):
        found: list[cst.BaseExpression] = []
        for one in value.elements:
            inner = elements_of(one.value) if isinstance(one, cst.StarredElement) else [one.value]
            if inner is None:
                return None
            found += inner
        return found
    if isinstance(value, cst.BinaryOperation):
        left, right = elements_of(value.left), elements_of(value.right)
        if isinstance(value.operator, cst.Add) and left is not None and right is not None:
            return left + right
        if isinstance(value.operator, cst.Multiply) and left is not None and isinstance(value.right, cst.Integer):
            return left * value.right.evaluated_value
    return None


def gradients_of(statement: cst.Return, count: int) -> list[cst.BaseExpression] | None:
    """Return the gradients in a return statement of backward; None if they are not written one by one."""
    value = statement.value
    found = elements_of(value) or ([] if value is None else [value])
    while len(found) > count and m.matches(found[-1], m.Name("None")):
        found.pop()
    return found if len(found) == count else None


def statements_of(node: cst.FunctionDef) -> list[cst.BaseStatement]:
    """Return the statements of a function."""
    return [one for one in node.body.body if isinstance(one, cst.BaseStatement)]


def only_part(statement: cst.CSTNode) -> cst.BaseSmallStatement | None:
    """Return the statement in a line; None for a block, and for several statements."""
    is_line = isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1
    return statement.body[0] if is_line else None  # type: ignore[attr-defined]


def comments_of(statement: cst.CSTNode) -> list[cst.EmptyLine]:
    """Return the comments before a statement and at its end, as lines before the statement that replaces it."""
    own = cst.ensure_type(statement, cst.SimpleStatementLine)
    comment = own.trailing_whitespace.comment
    return [*own.leading_lines, *([cst.EmptyLine(comment=comment)] if comment else [])]


def with_comments(
    rows: Iterable[tuple[Sequence[cst.EmptyLine], Sequence[cst.BaseStatement]]],
) -> tuple[list[cst.BaseStatement], list[cst.EmptyLine]]:
    """Return statements, each row with comments before its first or the next one; and the comments after the last."""
    found: list[cst.BaseStatement] = []
    comments: list[cst.EmptyLine] = []
    for before, statements in rows:
        comments += before
        for one in statements:
            lines = [*comments, *getattr(one, "leading_lines", ())]
            found.append(one.with_changes(leading_lines=lines) if comments else one)
            comments = []
    return found, comments


def tuple_of(names: Sequence[str]) -> str:
    """Return the source of a tuple of strings."""
    return f"({', '.join(f'{one!r}' for one in names)}{',' if len(names) == 1 else ''})".replace("'", '"')


def in_parentheses(value: cst.BaseExpression) -> cst.BaseExpression:
    """Return an expression that can be part of another one."""
    if isinstance(value, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)) or value.lpar:
        return value
    return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


class Substitution(cst.CSTTransformer):
    """Replaces variables by expressions, but not attributes and keywords."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        self._values = values

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        found = self._values.get(original_node.value)
        return updated_node if found is None else in_parentheses(found)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)


def replaced(node: cst.BaseExpression, values: Values) -> cst.BaseExpression:
    """Return an expression whose variables are replaced by expressions."""
    found = node.visit(Substitution(values))
    assert isinstance(found, cst.BaseExpression)
    return found
