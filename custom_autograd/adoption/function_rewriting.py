"""Rewrites an autograd.Function as a declared op: forward is the kernel, backward is a rule that names what it needs.

x, s = ctx.saved_tensors       left out: the rule takes `x` and `s`
beta = ctx.beta                left out: the rule takes `beta`
return grad * s, None          return {"x": grad * s}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import libcst as cst
import libcst.matchers as m

from custom_autograd.adoption.class_uses import ApplyCall
from custom_autograd.adoption.forward_rewriting import Forward, parameters_of
from custom_autograd.adoption.parameter_types import types_of
from custom_autograd.adoption.syntax import (
    BLANK,
    NotMechanical,
    Substitution,
    Values,
    code,
    comments_of,
    elements_of,
    gradients_of,
    in_parentheses,
    last_name,
    names_in,
    only_part,
    targets_in,
    with_comments,
)


def name_of_op(cls: str) -> str:
    """Return the name of the op of a class: `EntmaxFunction` -> `entmax`."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls).lower().strip("_")
    return re.sub(r"_(function|fn|func)$", "", name)


def rewritten(
    node: cst.ClassDef, name: str, namespace: str, recorded: Mapping[str, str], calls: Sequence[ApplyCall]
) -> list[cst.BaseStatement]:
    """Return the op and the backward that replace a Function; raise if the Function is not plain enough."""
    methods = _methods(node)
    setup_context = methods.get("setup_context")
    parameters = parameters_of(methods["forward"], has_ctx=setup_context is None)
    forward = Forward(methods["forward"], setup_context, types_of(node, methods, parameters, recorded, calls))
    docstring = [one for one in node.body.body if isinstance(one, cst.BaseStatement) and m.matches(one, DOCSTRING)]
    kernel = forward.function(name, f"{namespace}::{name}", docstring)
    found: list[cst.BaseStatement] = [kernel.with_changes(leading_lines=[*node.leading_lines, *kernel.leading_lines])]
    if "backward" in methods:
        found.append(Backward(methods["backward"], forward).function(name).with_changes(leading_lines=BLANK))
    return found


def _methods(node: cst.ClassDef) -> dict[str, cst.FunctionDef]:
    found: dict[str, cst.FunctionDef] = {}
    for statement in node.body.body:
        if isinstance(statement, cst.FunctionDef):
            found[statement.name.value] = statement
        elif not m.matches(statement, DOCSTRING | PASS | VMAP):
            raise NotMechanical("the class has attributes")
    base = last_name(node.bases[0].value)
    if base != "Function" or len(node.bases) > 1:
        raise NotMechanical(f"it inherits from '{base}'")
    if "forward" not in found:
        raise NotMechanical("it has no forward")
    for name, method in found.items():
        if name not in ("forward", "backward", "setup_context"):
            raise NotMechanical(f"it defines {name}()")
        for one in method.decorators:
            text = code(one.decorator)
            if text not in DECORATORS and not (name == "backward" and text.endswith("once_differentiable")):
                raise NotMechanical(f"{name} is decorated with @{text}")
    return found


DOCSTRING = m.SimpleStatementLine(body=[m.Expr(m.SimpleString())])
PASS = m.SimpleStatementLine(body=[m.Pass()])
VMAP = m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(m.Name("generate_vmap_rule"))])])
DECORATORS = frozenset({"staticmethod", "classmethod", "torch.jit.ignore", "torch.jit.unused"})
"""Decorators that do not change the kernel or the backward of an op."""
SAVED = m.Attribute(value=m.Name("ctx"), attr=m.Name("saved_tensors") | m.Name("saved_variables"))


class Backward:
    """A backward as a rule that names what it needs."""

    def __init__(self, node: cst.FunctionDef, forward: Forward) -> None:
        self._node, self._forward = node, forward
        self._is_once = any("once_differentiable" in code(one.decorator) for one in node.decorators)
        written = list(parameters_of(node, has_ctx=True))
        self._used = names_in(node.body)
        renamed = self._grads_by_parameter(written)
        self._grads = [code(one) for one in renamed.values()]
        assigned = targets_in(node.body)
        unpacking = _Unpacking(forward, [*assigned, *written])
        body = cast(cst.CSTNode, node.body.visit(unpacking))
        renamed |= unpacking.renamed
        self._locals = {*assigned, *written} - renamed.keys()
        self._check_globals(self._used, renamed)
        self._body = self._renamed(body, renamed)

    def _grads_by_parameter(self, written: list[str]) -> Values:
        """Return the gradients of differentiable outputs by parameter of backward."""
        outputs, fixed = self._forward.outputs, self._forward.fixed
        if len(written) != len(outputs):
            raise NotMechanical("backward takes fewer or more gradients than there are outputs")
        if m.findall(self._node.body, m.AssignTarget(target=m.Attribute(value=m.Name("ctx")))):
            raise NotMechanical("backward writes to ctx")
        rows = list(zip(written, outputs, strict=True))
        if any(own in self._used for own, output in rows if output in fixed):
            raise NotMechanical("backward uses the gradient of an output without one")
        is_one = len(outputs) == 1
        return {own: cst.Name("grad" if is_one else f"grad_{output}") for own, output in rows if output not in fixed}

    def _renamed(self, body: cst.CSTNode, renamed: Values) -> cst.CSTNode:
        """Return the body in terms of arguments of the rule; its own variables are renamed if they have such a name."""
        reading = _OnCtx(self._forward)
        body.visit(reading)
        taken = {*reading.read, *(code(one) for one in renamed.values())}
        renamed |= {name: cst.Name(_unused(name, {*self._used, *taken})) for name in self._locals if name in taken}
        self._locals = {code(renamed.get(name, cst.Name(name))) for name in self._locals}
        for step in (Substitution(renamed), _OnCtx(self._forward), _Returns(self._forward)):
            body = cast(cst.CSTNode, body.visit(step))
        if "ctx" in names_in(body):
            found = m.findall(body, m.Attribute(value=m.Name("ctx")))
            raise NotMechanical(f"backward uses {code(found[0]) if found else 'ctx'}")
        return body

    def _check_globals(self, used: Iterable[str], renamed: Values) -> None:
        """Raise if backward uses a global variable that would become an argument of the rule."""
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
    """Removes `x, y = ctx.saved_tensors` and `beta = ctx.beta`; `renamed` has the values of these variables."""

    def __init__(self, forward: Forward, assigned: list[str]) -> None:
        super().__init__()
        self._forward, self._assigned = forward, assigned
        self.renamed: Values = {}

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        rows = []
        for one in updated_node.body:
            assert isinstance(one, cst.BaseStatement)
            kept = self._without_names(one)
            rows.append((comments_of(one), []) if kept is None else ([], [kept]))
        return updated_node.with_changes(body=with_comments(rows)[0])

    def _without_names(self, statement: cst.BaseStatement) -> cst.BaseStatement | None:
        """Return a statement without variables that can be renamed; None if all can."""
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
        """Record the name of a variable in the op, and return True, if backward does not assign to it again."""
        found = value.visit(_OnCtx(self._forward))
        if not isinstance(found, cst.Name) or self._assigned.count(name) != 1 or code(value) == code(found):
            return False
        self.renamed[name] = found
        return True


class _OnCtx(cst.CSTTransformer):
    """Replaces attributes of ctx by their values; `read` has the variables in these."""

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
