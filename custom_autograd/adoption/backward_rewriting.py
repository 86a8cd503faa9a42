"""backward of an autograd.Function as the rule of a declared op, which names what it needs.

x, s = ctx.saved_tensors       left out: the rule takes `x` and `s`
beta = ctx.beta                left out: the rule takes `beta`
return grad * s, None          return {"x": grad * s}
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

import libcst as cst
import libcst.matchers as m

from custom_autograd.adoption.forward_rewriting import Forward, parameters_of
from custom_autograd.adoption.syntax import (
    NotMechanical,
    Substitution,
    Values,
    code,
    comments_of,
    elements_of,
    in_parentheses,
    names_in,
    only_part,
    targets_in,
)

SAVED = m.Attribute(value=m.Name("ctx"), attr=m.Name("saved_tensors") | m.Name("saved_variables"))


class Backward:
    """backward, as a rule that names what it needs."""

    def __init__(self, node: cst.FunctionDef, forward: Forward) -> None:
        self._node, self._forward = node, forward
        self._is_once = any("once_differentiable" in code(one.decorator) for one in node.decorators)
        written = list(parameters_of(node, has_ctx=True))
        grads = ["grad"] if len(forward.outputs) == 1 else [f"grad_{one}" for one in forward.outputs]
        if len(written) != len(grads):
            raise NotMechanical("backward takes fewer or more gradients than there are outputs")
        rows = list(zip(written, grads, forward.outputs, strict=True))
        used = names_in(node.body)
        if m.findall(node.body, m.AssignTarget(target=m.Attribute(value=m.Name("ctx")))):
            raise NotMechanical("backward writes to ctx")
        if any(own in used for own, _, output in rows if output in forward.fixed):
            raise NotMechanical("backward uses the gradient of an output without one")
        self._grads = [grad for _, grad, output in rows if output not in forward.fixed]
        self._assigned = targets_in(node.body)
        renamed: Values = {own: cst.Name(grad) for own, grad, output in rows if output not in forward.fixed}
        unpacking = _Unpacking(forward, [*self._assigned, *written])
        body = cast(cst.CSTNode, node.body.visit(unpacking))
        renamed |= unpacking.renamed
        self._locals = {*self._assigned, *written} - renamed.keys()
        self._check_globals(used, renamed)
        reading = _OnCtx(forward)
        body.visit(reading)
        taken = {*reading.read, *(code(one) for one in renamed.values())}
        renamed |= {name: cst.Name(_unused(name, {*used, *taken})) for name in self._locals if name in taken}
        self._locals = {code(renamed.get(name, cst.Name(name))) for name in self._locals}
        for step in (Substitution(renamed), _OnCtx(forward), _Returns(forward)):
            body = cast(cst.CSTNode, body.visit(step))
        if "ctx" in names_in(body):
            found = m.findall(body, m.Attribute(value=m.Name("ctx")))
            raise NotMechanical(f"backward uses {code(found[0]) if found else 'ctx'}")
        self._body = body

    def _check_globals(self, used: Iterable[str], renamed: Values) -> None:
        """Raise if backward uses a name of its module that would be an argument of the rule."""
        known = {*self._forward.types, *self._forward.outputs, *self._forward.hidden, *self._grads, "meta", "needs"}
        for name in used:
            if name in known and name not in self._locals and name not in renamed:
                raise NotMechanical(f"backward uses '{name}' of its module, and forward has another '{name}'")

    def function(self, op: str) -> cst.FunctionDef:
        """Return the rule of an op."""
        forward, used = self._forward, set(names_in(self._body)) - self._locals
        values = dict.fromkeys([*forward.types, *forward.outputs, *forward.hidden])
        names = [*self._grads, *(one for one in (*values, "needs", "meta") if one in used)]
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


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


class _Unpacking(cst.CSTTransformer):
    """Removes `x, y = ctx.saved_tensors` and `beta = ctx.beta`, and records what the variables hold.

    Attributes:
        renamed: by variable that is left out, the name of its value in the op.
    """

    def __init__(self, forward: Forward, assigned: list[str]) -> None:
        super().__init__()
        self._forward, self._assigned = forward, assigned
        self.renamed: Values = {}

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        found: list[cst.BaseStatement] = []
        comments: list[cst.EmptyLine] = []
        for one in updated_node.body:
            assert isinstance(one, cst.BaseStatement)
            kept = self._without_names(one)
            if kept is None:
                comments += comments_of(one)
            else:
                lines = [*comments, *getattr(kept, "leading_lines", ())]
                found.append(kept.with_changes(leading_lines=lines) if comments else kept)
                comments = []
        return updated_node.with_changes(body=found)

    def _without_names(self, statement: cst.BaseStatement) -> cst.BaseStatement | None:
        """Return a statement without the variables that can be renamed; None if nothing is left."""
        one = only_part(statement)
        if not isinstance(one, cst.Assign) or len(one.targets) != 1 or not m.findall(one.value, m.Name("ctx")):
            return statement
        targets = elements_of(one.targets[0].target) or [one.targets[0].target]
        is_saved = m.matches(one.value, SAVED) and isinstance(one.targets[0].target, cst.Tuple)
        count = len(self._forward.saved)
        values = [cst.parse_expression(f"ctx.saved_tensors[{i}]") for i in range(count)] if is_saved else None
        values = values or elements_of(one.value) or [one.value]
        if len(targets) != len(values) or not all(isinstance(target, cst.Name) for target in targets):
            if is_saved:
                raise NotMechanical("backward does not unpack its saved tensors one by one")
            return statement
        rest = [
            (code(target), code(value))
            for target, value in zip(targets, values, strict=True)
            if not self._is_renamed(code(target), value)
        ]
        if not rest:
            return None
        text = f"{', '.join(name for name, _ in rest)} = {', '.join(value for _, value in rest)}"
        line = cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine)
        return cst.ensure_type(statement, cst.SimpleStatementLine).with_changes(body=line.body)

    def _is_renamed(self, name: str, value: cst.BaseExpression) -> bool:
        """Record the value that a variable holds throughout backward, and return True, if it has a name in the op."""
        found = value.visit(_OnCtx(self._forward))
        if not isinstance(found, cst.Name) or self._assigned.count(name) != 1 or code(value) == code(found):
            return False
        self.renamed[name] = found
        return True


class _OnCtx(cst.CSTTransformer):
    """Replaces attributes of ctx by what they hold.

    Attributes:
        read: the variables in it.
    """

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self._forward = forward
        self.read: set[str] = set()

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        kept = self._forward.kept.get(original_node.attr.value)
        if kept is None or not m.matches(original_node.value, m.Name("ctx")):
            return updated_node
        return self._noted(kept)

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.BaseExpression:
        text = code(original_node)
        found = re.fullmatch(r"ctx\.(saved_tensors|needs_input_grad)\[(\d+)\]", text)
        if found is None:
            return updated_node
        index, names = int(found[2]), list(self._forward.types)
        if index >= len(self._forward.saved if found[1] == "saved_tensors" else names):
            raise NotMechanical(f"backward uses {text}")
        if found[1] == "saved_tensors":
            return self._noted(self._forward.saved[index])
        self.read.add("needs")
        is_tensor = names[index] in self._forward.tensors
        return cst.parse_expression(f"needs.{names[index]}") if is_tensor else cst.Name("False")

    def _noted(self, value: cst.BaseExpression) -> cst.BaseExpression:
        self.read.update(names_in(value))
        return in_parentheses(value)


class _Returns(cst.CSTTransformer):
    """Replaces the tuple that backward returns by a dict of gradients by argument."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self._forward = forward

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def leave_Return(self, original_node: cst.Return, updated_node: cst.Return) -> cst.Return:
        names, tensors = list(self._forward.types), self._forward.tensors
        found = gradients_of(updated_node, len(names))
        if found is None:
            raise NotMechanical("backward returns gradients that are not written one by one")
        row = {name: code(one) for name, one in zip(names, found, strict=True)}
        wrong = [name for name, text in row.items() if name not in tensors and text != "None"]
        if wrong:
            raise NotMechanical(f"backward returns a gradient of '{wrong[0]}', which is not a tensor")
        if len(names) == 1:
            return updated_node.with_changes(value=found[0])
        text = ", ".join(f'"{name}": {row[name]}' for name in names if name in tensors)
        return updated_node.with_changes(
            value=cst.parse_expression("{" + text + "}"), whitespace_after_return=cst.SimpleWhitespace(" ")
        )


def gradients_of(statement: cst.Return, count: int) -> list[cst.BaseExpression] | None:
    """Return the gradients that a statement of backward returns, by argument; None if they are not written so."""
    value = statement.value
    found = elements_of(value) or ([] if value is None else [value])
    while len(found) > count and m.matches(found[-1], m.Name("None")):
        found.pop()
    return found if len(found) == count else None
