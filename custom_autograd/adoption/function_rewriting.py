"""Rewrites the source of an autograd.Function as a declared op: forward is its kernel, backward names what it needs."""

from __future__ import annotations

import re
from collections.abc import Mapping

import libcst as cst
import libcst.matchers as m

from custom_autograd.adoption.backward_rewriting import Backward
from custom_autograd.adoption.forward_rewriting import Forward, parameters_of
from custom_autograd.adoption.parameter_types import Evidence
from custom_autograd.adoption.syntax import NotMechanical, code, last_name

PLAIN = m.SimpleStatementLine(body=[m.Expr(m.SimpleString()) | m.Pass()])
VMAP = m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(m.Name("generate_vmap_rule"))])])
DECORATORS = frozenset({"staticmethod", "classmethod", "torch.jit.ignore", "torch.jit.unused"})
"""Decorators that make no difference to the kernel or the backward of an op."""


def name_of_op(cls: str) -> str:
    """Return the name of the op of a class: `EntmaxFunction` -> `entmax`."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls).lower().strip("_")
    return re.sub(r"_(function|fn|func)$", "", name)


def rewritten(
    node: cst.ClassDef, name: str, namespace: str, types: Mapping[str, str], evidence: Evidence
) -> list[cst.BaseStatement]:
    """Return the statements that take the place of a Function: a declared op, and its backward.

    Args:
        node: the class.
        name: of the op and its function.
        namespace: of the op.
        types: by parameter of forward, its annotation as recorded calls tell it.
        evidence: what the package tells of other parameters.

    Raises:
        NotMechanical: it is not plain enough.
    """
    methods = _methods(node)
    setup_context = methods.get("setup_context")
    parameters = parameters_of(methods["forward"], has_ctx=setup_context is None)
    forward = Forward(methods["forward"], setup_context, evidence.types(node, methods, parameters, types))
    kernel = forward.function(name, f"{namespace}::{name}", _docstring(node))
    found: list[cst.BaseStatement] = [kernel.with_changes(leading_lines=[*node.leading_lines, *kernel.leading_lines])]
    if "backward" in methods:
        blank = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
        rule = Backward(methods["backward"], forward).function(name)
        found.append(rule.with_changes(leading_lines=blank))
    return found


def _methods(node: cst.ClassDef) -> dict[str, cst.FunctionDef]:
    found: dict[str, cst.FunctionDef] = {}
    for statement in node.body.body:
        if isinstance(statement, cst.FunctionDef):
            found[statement.name.value] = statement
        elif not m.matches(statement, PLAIN | VMAP):
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


def _docstring(node: cst.ClassDef) -> list[cst.BaseStatement]:
    plain = m.SimpleStatementLine(body=[m.Expr(m.SimpleString())])
    return [one for one in node.body.body if isinstance(one, cst.BaseStatement) and m.matches(one, plain)]
