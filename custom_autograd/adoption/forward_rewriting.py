"""forward of an autograd.Function as the kernel of a declared op: what it keeps on ctx, and as what backward finds it.

ctx.save_for_backward(x, s)    the argument `x`; `s`, computed in forward, becomes a hidden output
ctx.beta = beta                the argument `beta`
ctx.shape = x.shape            `meta.x.shape`
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import libcst as cst
import libcst.matchers as m

Values: TypeAlias = "dict[str, cst.BaseExpression]"


class NotMechanical(Exception):  # noqa: N818 - the text is a reason
    """The reason why source is left as it is."""


def code(node: cst.CSTNode) -> str:
    """Return the source of a node."""
    return cst.Module([]).code_for_node(node)


class _Names(cst.CSTVisitor):
    """Collects the variables that code names: not attributes or keywords."""

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
    """Return the variables that code names."""
    names = _Names()
    node.visit(names)
    return list(names.found)


def targets_in(node: cst.CSTNode) -> list[str]:
    """Return every variable that code assigns to, once for each time."""
    places = m.findall(node, m.AssignTarget() | m.AugAssign() | m.For() | m.NamedExpr() | m.AnnAssign())
    return [name for place in places for name in _variables(getattr(place, "target", None))]


def _variables(target: object) -> list[str]:
    if isinstance(target, (cst.Tuple, cst.List)):
        return [name for element in target.elements for name in _variables(element.value)]
    return [target.value] if isinstance(target, cst.Name) else []


TENSOR = re.compile(r"\bTensor\b")
FACTS = ("shape", "dtype", "device", "layout", "ndim")
VIEWS = ("view", "view_as", "detach", "expand", "expand_as", "t", "transpose", "permute", "squeeze", "unsqueeze")


class Forward:
    """forward, and what it keeps.

    Attributes:
        types: by argument, its annotation.
        outputs: their names; the hidden ones come last.
        hidden: names of intermediates that backward needs.
        saved: by position in `ctx.saved_tensors`, the name of an argument or an output.
        kept: by attribute of ctx, what it is in backward.
    """

    def __init__(
        self, forward: cst.FunctionDef, setup_context: cst.FunctionDef | None, types: Mapping[str, str]
    ) -> None:
        self._node = forward
        parameters = list(forward.params.params)
        if not isinstance(forward.params.star_arg, cst.MaybeSentinel) or forward.params.star_kwarg:
            raise NotMechanical("forward takes *args")
        self._own = parameters if setup_context else parameters[1:]
        self.types = {one.name.value: _annotation(one, types) for one in self._own}
        self.tensors = [name for name, text in self.types.items() if TENSOR.search(text)]
        self.saved: list[str] = []
        self.kept: Values = {}
        self.fixed: list[str] = []
        self.materializes = True
        self._assigned = targets_in(forward.body)
        self._locals: Values = {}
        statements = self._without_ctx(_statements(forward))
        self._returned = self._return_of(statements)
        named = [one.value if isinstance(one, cst.Name) else None for one in self._returned]
        count = len(named)
        plain = ["output"] if count == 1 else [f"output_{index}" for index in range(count)]
        usable = [one if one and one not in self.types and named.count(one) == 1 else None for one in named]
        self.outputs = [one or other for one, other in zip(usable, plain, strict=True)]
        self.is_named = any(usable)
        if setup_context is not None:
            self._rename = {setup_context.params.params[2].name.value: self.outputs[0]}
            self._without_ctx(self._inputs_unpacked(_statements(setup_context)), is_setup=True)
        self.hidden = [one for one in dict.fromkeys(self.saved) if one not in (*self.types, *self.outputs)]
        self._check(setup_context is not None)
        self._statements = statements

    def _inputs_unpacked(self, statements: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
        """Return the statements of a setup_context after `x, y = inputs`, whose names must be those of forward."""
        if statements and m.matches(statements[0], m.SimpleStatementLine(body=[m.Assign(value=m.Name("inputs"))])):
            if targets_in(statements[0]) != list(self.types):
                raise NotMechanical("setup_context unpacks its inputs under other names")
            return statements[1:]
        return statements

    def _without_ctx(self, statements: list[cst.BaseStatement], *, is_setup: bool = False) -> list[cst.BaseStatement]:
        """Note what is put on ctx, and return the other statements; comments stay with what follows."""
        found: list[cst.BaseStatement] = []
        comments: list[cst.EmptyLine] = []
        for statement in statements:
            if self._is_noted(statement):
                comments += comments_of(statement)
                continue
            if is_setup or (m.findall(statement, m.Name("ctx"))):
                raise NotMechanical(f"{'setup_context' if is_setup else 'forward'} uses ctx within other code")
            if comments:
                statement = statement.with_changes(leading_lines=[*comments, *getattr(statement, "leading_lines", ())])
            found.append(statement)
            comments = []
        return found

    def _is_noted(self, statement: cst.BaseStatement) -> bool:
        """Note a statement that keeps something on ctx; return False for any other."""
        if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
            return False
        one = statement.body[0]
        if (
            isinstance(one, cst.Expr)
            and isinstance(one.value, cst.Call)
            and m.matches(one.value.func, m.Attribute(m.Name("ctx")))
        ):
            self._note_call(one.value)
            return True
        if isinstance(one, cst.Assign) and len(one.targets) == 1:
            target = one.targets[0].target
            if isinstance(target, cst.Name):
                self._locals[target.value] = one.value
            if isinstance(target, cst.Attribute) and m.matches(target.value, m.Name("ctx")):
                self.kept[target.attr.value] = self._inlined(one.value, f"ctx.{target.attr.value}")
                return True
        return False

    def _note_call(self, call: cst.Call) -> None:
        method, names = code(call.func), [code(one.value) for one in call.args]
        if method == "ctx.save_for_backward":
            if not all(name.isidentifier() for name in names):
                raise NotMechanical("it saves an expression")
            self.saved = [getattr(self, "_rename", {}).get(name, name) for name in names]
        elif method == "ctx.mark_non_differentiable":
            self.fixed = names
        elif method == "ctx.set_materialize_grads":
            self.materializes = names != ["False"]
        else:
            raise NotMechanical(f"it calls {method}()")

    def _inlined(self, value: cst.BaseExpression, what: str) -> cst.BaseExpression:
        """Return an expression that backward can compute: of arguments that are numbers, and of facts about tensors."""
        for name in names_in(value):
            known = self._locals.get(name)
            if name in self.types and self._assigned.count(name):
                raise NotMechanical(f"{what} is computed from '{name}' after forward assigns to it")
            if known is not None and self._assigned.count(name) == 1:
                value = _replaced(value, {name: self._inlined(known, what)})
            elif name in self._assigned:
                raise NotMechanical(f"{what} is computed in forward")
        facts = _Facts(self.tensors)
        found = value.visit(facts)
        assert isinstance(found, cst.BaseExpression)
        if facts.others:
            raise NotMechanical(f"{what} holds the tensor '{facts.others[0]}' or depends on its data")
        return found

    def _return_of(self, statements: list[cst.BaseStatement]) -> list[cst.BaseExpression]:
        returns = m.findall(self._node.body, m.Return())
        last = statements.pop() if statements else cst.SimpleStatementLine([])
        if len(returns) != 1 or not isinstance(last, cst.SimpleStatementLine) or returns[0] is not last.body[-1]:
            raise NotMechanical("forward returns in several places")
        value = cst.ensure_type(returns[0], cst.Return).value or cst.Name("None")
        self._last = last
        self.is_tuple = isinstance(value, cst.Tuple)
        found = [one.value for one in value.elements] if isinstance(value, cst.Tuple) else [value]
        for one in found:
            is_view = m.matches(one, m.Call(func=m.Attribute(m.Name(), m.MatchIfTrue(lambda a: a.value in VIEWS))))
            base = names_in(one)[0] if is_view else code(one)
            if base in self.types and not self._assigned.count(base):
                raise NotMechanical(f"it returns its parameter '{base}'{', or a view of it' if is_view else ''}")
        return found

    def _check(self, has_setup: bool) -> None:
        for name in self.saved:
            if name in self.types and name in self._assigned:
                raise NotMechanical(f"it saves '{name}' after forward assigns to it")
        for name in self.hidden:
            if name not in self._assigned or has_setup:
                raise NotMechanical(f"it saves '{name}', which forward does not compute")
        if not set(self.fixed) <= set(self.outputs):
            raise NotMechanical("mark_non_differentiable names what is not an output")

    def function(self, name: str, op: str, docstring: list[cst.BaseStatement]) -> cst.FunctionDef:
        """Return the kernel, declared as an op."""
        options = [f'"{op}"']
        used = {*self.saved, *self.fixed} & set(self.outputs)
        if self.hidden or (used - {"output"}) or (len(self.outputs) > 1 and self.is_named):
            options.append(f"outputs={tuple_of([*self.outputs, *self.hidden])}")
        options += [f"hidden={tuple_of(self.hidden)}"] if self.hidden else []
        options += [f"non_differentiable={tuple_of(self.fixed)}"] if self.fixed else []
        values = [code(one) for one in self._returned] + self.hidden
        is_tuple = self.is_tuple or bool(self.hidden)
        text = ", ".join(values) + ("," if is_tuple and len(values) == 1 else "")
        last = self._last.with_changes(
            body=cst.ensure_type(cst.parse_statement(f"return {text}"), cst.SimpleStatementLine).body
        )
        returned = f"tuple[{', '.join(['Tensor'] * len(values))}]" if is_tuple else "Tensor"
        own = [] if self._node.get_docstring() is not None else docstring
        parameters = [
            one.with_changes(
                annotation=cst.Annotation(cst.parse_expression(self.types[one.name.value])),
                equal=cst.AssignEqual() if one.default else one.equal,
            )
            for one in self._own
        ]
        return self._node.with_changes(
            name=cst.Name(name),
            params=self._node.params.with_changes(params=parameters),
            decorators=[cst.Decorator(cst.parse_expression(f"custom_op({', '.join(options)})"))],
            returns=cst.Annotation(cst.parse_expression(returned)),
            body=self._node.body.with_changes(body=[*own, *self._statements, last]),
            leading_lines=[one for one in self._node.leading_lines if one.comment],
        )


def _annotation(parameter: cst.Param, types: Mapping[str, str]) -> str:
    name = parameter.name.value
    if parameter.annotation is None and name not in types:
        raise NotMechanical(f"'{name}' has no annotation: record a call with --record")
    return types[name] if parameter.annotation is None else code(parameter.annotation.annotation)


def _statements(node: cst.FunctionDef) -> list[cst.BaseStatement]:
    return [one for one in node.body.body if isinstance(one, cst.BaseStatement)]


def comments_of(statement: cst.CSTNode) -> list[cst.EmptyLine]:
    """Return the lines before a statement, with the comment at its end, for another one that takes its place."""
    own = cst.ensure_type(statement, cst.SimpleStatementLine)
    comment = own.trailing_whitespace.comment
    return [*own.leading_lines, *([cst.EmptyLine(comment=comment)] if comment else [])]


def tuple_of(names: Sequence[str]) -> str:
    """Return the source of a tuple of texts."""
    return f"({', '.join(f'{one!r}' for one in names)}{',' if len(names) == 1 else ''})".replace("'", '"')


class _Facts(cst.CSTTransformer):
    """Puts `meta.x.shape` in place of `x.shape`, and notes other uses of tensors."""

    def __init__(self, tensors: Sequence[str]) -> None:
        super().__init__()
        self._tensors = tensors
        self.others: list[str] = []

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        return not self._is_fact(node)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        if self._is_fact(original_node):
            return cst.parse_expression(f"meta.{code(original_node)}")
        return updated_node

    def _is_fact(self, node: cst.Attribute) -> bool:
        return node.attr.value in FACTS and m.matches(node.value, m.Name()) and code(node.value) in self._tensors

    def visit_Name(self, node: cst.Name) -> None:
        if node.value in self._tensors:
            self.others.append(node.value)


def _replaced(node: cst.BaseExpression, values: Values) -> cst.BaseExpression:
    found = node.visit(Substitution(values))
    assert isinstance(found, cst.BaseExpression)
    return found


class Substitution(cst.CSTTransformer):
    """Puts expressions in place of variables; names of attributes and keywords stay."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        self._values = values

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        found = self._values.get(original_node.value)
        if found is None or isinstance(found, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)):
            return found or updated_node
        return found.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)
