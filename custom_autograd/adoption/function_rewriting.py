"""Rewrites the source of an autograd.Function as a declared op: forward is its kernel, backward names what it needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

import libcst as cst
import libcst.matchers as m

from custom_autograd.adoption.forward_rewriting import (
    Forward,
    NotMechanical,
    Substitution,
    Values,
    code,
    comments_of,
    names_in,
    targets_in,
)


def name_of_op(cls: str) -> str:
    """Return the name of the op of a class: `EntmaxFunction` -> `entmax`."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls).lower().strip("_")
    return re.sub(r"_(function|fn|func)$", "", name)


def rewritten(node: cst.ClassDef, name: str, namespace: str, types: Mapping[str, str]) -> list[cst.BaseStatement]:
    """Return the statements that take the place of a Function: a declared op, and its backward.

    Args:
        node: the class.
        name: of the op and its function.
        namespace: of the op.
        types: by parameter of forward, its annotation as recorded calls tell it.

    Raises:
        NotMechanical: it is not plain enough.
    """
    methods = _methods(node)
    forward = Forward(methods["forward"], methods.get("setup_context"), types)
    rule = Backward(methods["backward"], forward).function(name)
    kernel = forward.function(name, f"{namespace}::{name}", _docstring(node))
    blank = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
    leading = [*node.leading_lines, *kernel.leading_lines]
    return [kernel.with_changes(leading_lines=leading), rule.with_changes(leading_lines=blank)]


def _methods(node: cst.ClassDef) -> dict[str, cst.FunctionDef]:
    found: dict[str, cst.FunctionDef] = {}
    for statement in node.body.body:
        if isinstance(statement, cst.FunctionDef):
            found[statement.name.value] = statement
        elif not m.matches(statement, m.SimpleStatementLine(body=[m.Expr(m.SimpleString()) | m.Pass()])):
            raise NotMechanical("the class has attributes")
    if not {"forward", "backward"} <= found.keys():
        raise NotMechanical("it inherits forward or backward")
    for name, method in found.items():
        if name not in ("forward", "backward", "setup_context"):
            raise NotMechanical(f"it defines {name}()")
        for one in method.decorators:
            text = code(one.decorator)
            if text != "staticmethod" and not (name == "backward" and text.endswith("once_differentiable")):
                raise NotMechanical(f"{name} is decorated with @{text}")
    return found


def _docstring(node: cst.ClassDef) -> list[cst.BaseStatement]:
    plain = m.SimpleStatementLine(body=[m.Expr(m.SimpleString())])
    return [one for one in node.body.body if isinstance(one, cst.BaseStatement) and m.matches(one, plain)]


class Backward:
    """backward, as a rule that names what it needs."""

    def __init__(self, node: cst.FunctionDef, forward: Forward) -> None:
        self._node, self._forward = node, forward
        self._is_once = any("once_differentiable" in code(one.decorator) for one in node.decorators)
        visible = forward.outputs
        grads = ["grad"] if len(visible) == 1 else [f"grad_{one}" for one in visible]
        written = [one.name.value for one in node.params.params[1:]]
        if len(written) != len(grads) or not isinstance(node.params.star_arg, cst.MaybeSentinel):
            raise NotMechanical("backward takes *grads, or fewer than there are outputs")
        self._assigned = targets_in(node.body)
        self._values: Values = {}
        for own, grad, output in zip(written, grads, visible, strict=True):
            if output not in forward.fixed:
                self._rename(own, grad)
        used = names_in(node.body)
        if any(one in used for one, output in zip(written, visible, strict=True) if output in forward.fixed):
            raise NotMechanical("backward uses the gradient of an output without one")
        self._sources = [grad for grad, output in zip(grads, visible, strict=True) if output not in forward.fixed]
        statements: list[cst.CSTNode] = []
        comments: list[cst.EmptyLine] = []
        for one in node.body.body:
            if self._unpacks(one):
                comments += comments_of(one)
            else:
                lines = [*comments, *getattr(one, "leading_lines", ())]
                statements.append(one.with_changes(leading_lines=lines) if comments else one)
                comments = []
        body: cst.CSTNode = node.body.with_changes(body=statements)
        for step in (_OnCtx(forward), Substitution(self._values), _Returns(forward)):
            body = cast(cst.CSTNode, body.visit(step))
        if "ctx" in names_in(body):
            found = m.findall(body, m.Attribute(value=m.Name("ctx")))
            raise NotMechanical(f"backward uses {code(found[0]) if found else 'ctx'}")
        self._body = body

    def _rename(self, own: str, source: str) -> None:
        """Let a variable of backward have the name that its value has in the op."""
        if own != source:
            if source in self._assigned or source in [one.name.value for one in self._node.params.params]:
                raise NotMechanical(f"backward has another '{source}'")
            self._values[own] = cst.Name(source)

    def _unpacks(self, statement: cst.CSTNode) -> bool:
        """Note what `x, y = ctx.saved_tensors` names; return False for any other statement."""
        if not m.matches(statement, m.SimpleStatementLine(body=[m.Assign(value=SAVED)])):
            return False
        own = targets_in(statement)
        if len(own) != len(self._forward.saved):
            raise NotMechanical("backward does not unpack its saved tensors one by one")
        for name, source in zip(own, self._forward.saved, strict=True):
            self._assigned.remove(name)
            self._rename(name, source)
        return True

    def function(self, op: str) -> cst.FunctionDef:
        """Return the rule of an op."""
        forward, used = self._forward, set(names_in(self._body))
        values = [*forward.types, *forward.outputs, *forward.hidden]
        own = {one for one in self._assigned if one not in {*forward.saved, *forward.kept}}
        names = [*self._sources, *(one for one in values if one in used and one not in own)]
        names += [one for one in ("needs", "meta") if one in used]
        options = ["once_differentiable=True"] if self._is_once else []
        options += [] if forward.materializes else ["materialize_grads=False"]
        decorator = f"{op}.register_backward" + (f"({', '.join(options)})" if options else "")
        return self._node.with_changes(
            name=cst.Name("_"),
            params=cst.Parameters(params=[cst.Param(cst.Name(one)) for one in names]),
            decorators=[cst.Decorator(cst.parse_expression(decorator))],
            returns=None,
            body=self._body,
        )


SAVED = m.Attribute(value=m.Name("ctx"), attr=m.Name("saved_tensors") | m.Name("saved_variables"))


class _OnCtx(cst.CSTTransformer):
    """Puts what is kept in place of its attribute of ctx."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self._forward = forward

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        kept = self._forward.kept.get(original_node.attr.value)
        if kept is None or not m.matches(original_node.value, m.Name("ctx")):
            return updated_node
        is_simple = isinstance(kept, (cst.Name, cst.Attribute, cst.Call, cst.Subscript))
        return kept if is_simple else kept.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.BaseExpression:
        text = code(original_node)
        found = re.fullmatch(r"ctx\.(saved_tensors|needs_input_grad)\[(\d+)\]", text)
        if found is None:
            return updated_node
        names = self._forward.saved if found[1] == "saved_tensors" else list(self._forward.types)
        if int(found[2]) >= len(names):
            raise NotMechanical(f"backward uses {text}")
        name = names[int(found[2])]
        if found[1] == "needs_input_grad" and name not in self._forward.tensors:
            return cst.Name("False")
        return cst.parse_expression(name if found[1] == "saved_tensors" else f"needs.{name}")


class _Returns(cst.CSTTransformer):
    """Gives the gradients that backward returns the names of their arguments."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self._forward = forward

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def leave_Return(self, original_node: cst.Return, updated_node: cst.Return) -> cst.Return:
        names, tensors = list(self._forward.types), self._forward.tensors
        value = updated_node.value
        found = [one.value for one in value.elements] if isinstance(value, cst.Tuple) else [value]
        while len(found) > len(names) and found[-1] is not None and m.matches(found[-1], m.Name("None")):
            found.pop()
        if len(found) != len(names) or any(one is None or isinstance(one, cst.StarredElement) for one in found):
            raise NotMechanical("backward returns gradients that are not written one by one")
        row = {name: code(one) for name, one in zip(names, found, strict=True) if one is not None}
        wrong = [name for name, text in row.items() if name not in tensors and text != "None"]
        if wrong:
            raise NotMechanical(f"backward returns a gradient of '{wrong[0]}', which is not a tensor")
        if len(names) == 1:
            return updated_node.with_changes(value=found[0])
        text = ", ".join(f'"{name}": {row[name]}' for name in names if name in tensors)
        return updated_node.with_changes(
            value=cst.parse_expression("{" + text + "}"), whitespace_after_return=cst.SimpleWhitespace(" ")
        )
