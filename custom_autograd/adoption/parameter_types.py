"""Infers the types of parameters of forward without annotations from the source of a package.

A parameter is a tensor if forward saves it, backward returns a gradient of it, or code uses it as one. Defaults,
docstrings and the arguments of calls of `apply` show numbers. If these disagree, or there are none, the Function stays
as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import libcst as cst
import libcst.matchers as m
import torch

from custom_autograd.adoption.class_uses import ApplyCall, Scopes
from custom_autograd.adoption.syntax import (
    NotMechanical,
    code,
    gradients_of,
    last_name,
    names_in,
    statements_of,
    targets_in,
)

Methods = Mapping[str, cst.FunctionDef]

TENSOR, NONE, WHOLE, OTHER = "Tensor", "None", "a whole number", "something else"
"""Kinds of values that are not the name of a type; `2` may be an int, or a float."""

PLAIN = ("int", "float", "bool", "str")
KINDS = {"tensor": TENSOR, "string": "str", "integer": "int", "boolean": "bool", "none": NONE, "optional": NONE}
CONNECTING = frozenset(("union", "torch", "typing", "or", "and", "default", ""))
FOREIGN = (bool, int, float, str, list, tuple, dict)
FACTORIES = re.compile("tensor|as_tensor|zeros|ones|full|empty|arange|linspace|rand|randn|eye|Size|device|finfo")
"""Functions of torch whose first argument is not a tensor."""

WHOLE_NAMES = re.compile(
    r"(dim|axis|groups?|stride|padding|dilation|n|num|max_iter)(_\w+)?|(n|num|max)_\w+|\w+_(dim|axis|iter|size)"
)
KNOWN = re.compile(
    r"(\b(torch\.)?Tensor|\btorch\.(dtype|device|layout|memory_format)|\b(int|float|bool|str|complex|None)\b"
    r"|\b(typing\.)?(Optional|Union|list|List|tuple|Tuple|Sequence)\b|[][,|. \n])+"
)
"""Annotations that an op can have."""


def types_of(
    node: cst.ClassDef,
    methods: Methods,
    parameters: Mapping[str, cst.Param],
    recorded: Mapping[str, str],
    calls: Sequence[ApplyCall],
) -> dict[str, str]:
    """Return the annotation of each parameter of forward, which recorded calls may know; raise if one is not known."""
    found = {}
    for position, (name, parameter) in enumerate(parameters.items()):
        written = code(parameter.annotation.annotation).strip("\"'") if parameter.annotation else ""
        if KNOWN.fullmatch(written):
            found[name] = written
        elif name in recorded:
            found[name] = recorded[name]
        elif written and not written.endswith("Any"):
            raise NotMechanical(f"'{name}' has the type '{written}'")
        else:
            kinds = _of_calls(calls, position) | _of_docstrings(name, (node, methods["forward"]))
            kinds |= _of_literal(parameter.default) | _of_code(name, methods, position, len(parameters))
            found[name] = _decided(name, kinds, methods)
    return found


def _of_calls(calls: Sequence[ApplyCall], position: int) -> set[str]:
    """Return the kinds of the arguments at a position."""
    given = [(one.arguments[position], one.scopes) for one in calls if position < len(one.arguments)]
    return {kind for value, scopes in given for kind in _of_value(value, scopes)}


def _of_value(value: cst.BaseExpression, scopes: Scopes) -> set[str]:
    found = _of_literal(value)
    if isinstance(value, cst.Name) and not found:
        return _of_variable(value.value, scopes)
    if m.matches(value, m.Attribute(value=m.Name("self"))):
        return _of_attribute(code(value), scopes)
    return found


def _of_variable(name: str, scopes: Scopes) -> set[str]:
    for depth, scope in reversed(list(enumerate(scopes))):
        if not isinstance(scope, cst.FunctionDef):
            continue
        assigned = _assigned_to(name, scope)
        parameter = next((one for one in scope.params.params if one.name.value == name), None)
        if parameter is not None and not assigned:
            return _of_parameter(parameter, scope)
        if assigned:
            is_known = parameter is None and len(assigned) == targets_in(scope.body).count(name) == 1
            is_known = is_known and name not in names_in(assigned[0])
            return _of_value(assigned[0], scopes[: depth + 1]) if is_known else set()
    return set()


def _of_attribute(name: str, scopes: Scopes) -> set[str]:
    """Return the kinds of an attribute of `self` that one method of the class assigns."""
    cls = next((one for one in reversed(scopes) if isinstance(one, cst.ClassDef)), None)
    methods = [one for one in cls.body.body if isinstance(one, cst.FunctionDef)] if cls else []
    found = [(value, one) for one in methods for value in _assigned_to(name, one)]
    return _of_value(found[0][0], (found[0][1],)) if len(found) == 1 else set()


def _decided(name: str, kinds: set[str], methods: Methods) -> str:
    """Return the one type that all evidence agrees on."""
    is_optional = NONE in kinds
    kinds = kinds - {NONE}
    text = code(methods["forward"])
    if f"isinstance({name}," in text:
        raise NotMechanical(f"'{name}' has no annotation, and forward checks its type with isinstance()")
    if WHOLE in kinds and kinds <= {WHOLE, "int", "float"}:
        kinds = (kinds - {WHOLE}) or _of_whole(name, methods)
    kinds = {"float"} if kinds == {"int", "float"} else kinds
    if kinds == {"str"} and "device" in name:
        kinds = {"str", "torch.device"}
    if len(kinds) != 1 or kinds & {OTHER, WHOLE}:
        why = f"is {' and '.join(sorted(kinds))}" if kinds else "its type is not known"
        raise NotMechanical(f"'{name}' has no annotation, and {why}: record a call with --record")
    is_optional = is_optional or bool(re.search(rf"\b{name} is (not )?None", text))
    return f"{kinds.pop()} | None" if is_optional else kinds.pop()


def _of_whole(name: str, methods: Methods) -> set[str]:
    """Return the type of a parameter whose values are whole numbers: a float if code only calculates with it."""
    if WHOLE_NAMES.fullmatch(name):
        return {"int"}
    text = "\n".join(code(one.body) for one in methods.values())
    for attribute in re.findall(rf"ctx\.(\w+) = {name}\n", text):
        text = re.sub(rf"ctx\.{attribute} = {name}\n|\b{name} = ctx\.{attribute}\n", "", text)
        text = re.sub(rf"ctx\.{attribute}\b", name, text)
    uses = re.findall(rf"(.)[ ]?(?<![\w.]){name}(?!\w)(?!=)[ ]?(.)", text, re.DOTALL)
    is_number = all(before in "*/+-<>" or (after in "*/+-<>" and before not in ".") for before, after in uses)
    return {"float"} if is_number else {WHOLE}


def _of_literal(value: cst.BaseExpression | None) -> set[str]:
    if isinstance(value, cst.UnaryOperation):
        value = value.expression
    if isinstance(value, cst.Integer):
        return {WHOLE}
    if isinstance(value, cst.Float):
        return {"float"}
    if isinstance(value, cst.SimpleString):
        return {"str"}
    if isinstance(value, cst.Name):
        return {"True": {"bool"}, "False": {"bool"}, "None": {NONE}}.get(value.value, set())
    return set()


def _of_text(text: str) -> set[str]:
    """Return the kinds in an annotation, or in the type in a docstring."""
    words = {one.lower() for one in re.split(r"[^\w]+", text)} - CONNECTING
    return {one if one in PLAIN else KINDS.get(one, OTHER) for one in words}


def _of_parameter(parameter: cst.Param, function: cst.FunctionDef) -> set[str]:
    if parameter.annotation is not None:
        return _of_text(code(parameter.annotation.annotation))
    return _of_literal(parameter.default) | _of_docstrings(parameter.name.value, (function,))


def _of_docstrings(name: str, nodes: Iterable[cst.ClassDef | cst.FunctionDef]) -> set[str]:
    """Return the kinds in `name (int): ...` and `name : int`."""
    pattern = re.compile(
        rf"^\s*`{{0,2}}{name}`{{0,2}}(?: ?\((?P<google>[^)]*)\) ?:| : (?P<numpy>[^\n(]*))", re.MULTILINE
    )
    found = [one for node in nodes for one in pattern.finditer(node.get_docstring() or "")]
    return {kind for one in found for kind in _of_text(one["google"] or one["numpy"] or "")}


def _assigned_to(name: str, function: cst.FunctionDef) -> list[cst.BaseExpression]:
    """Return the values that a function assigns to a variable or an attribute, other than itself."""
    found = [one for one in m.findall(function.body, m.Assign()) if isinstance(one, cst.Assign)]
    values = [one.value for one in found if any(code(target.target) == name for target in one.targets)]
    return [value for value in values if code(value) != name]


# ------------------------------------------------------------------------------------- what forward and backward do


def _of_code(name: str, methods: Methods, position: int, count: int) -> set[str]:
    """Return the kinds that follow from how forward uses a parameter, and from the gradient that backward returns."""
    forward = methods["forward"]
    before: list[cst.BaseStatement] = []
    for statement in statements_of(forward):
        before.append(statement)
        if name in targets_in(statement):
            break
    is_own = name not in targets_in(forward.body)
    saved = [one for method in methods.values() for one in m.findall(method, SAVE)] if is_own else []
    is_saved = any(name == code(one.value) for call in saved for one in call.args)  # type: ignore[attr-defined]
    has_gradient = "backward" in methods and _has_gradient(methods["backward"], position, count)
    is_tensor = is_saved or has_gradient or any(_is_tensor(name, one) for one in before)
    is_whole = any(code(one.value) == name for each in before for one in m.findall(each, DIM))  # type: ignore[attr-defined]
    return ({TENSOR} if is_tensor else set()) | ({"int"} if is_whole else set())


SAVE = m.Call(func=m.Attribute(m.Name("ctx"), m.Name("save_for_backward")))
DIM = m.Arg(keyword=m.Name("dim") | m.Name("axis"))
MATMUL = m.BinaryOperation(operator=m.MatrixMultiply())


def _has_gradient(backward: cst.FunctionDef, position: int, count: int) -> bool:
    for one in m.findall(backward.body, m.Return()):
        found = gradients_of(cst.ensure_type(one, cst.Return), count)
        gradient = code(found[position]) if found else "None"
        assigned = [code(value) for value in _assigned_to(gradient, backward)]
        if gradient != "None" and (not assigned or {*assigned} != {"None"}):
            return True
    return False


def _is_tensor(name: str, node: cst.CSTNode) -> bool:
    """Return True if code uses a variable as only a tensor can be used."""
    own = m.Name(name)
    attributes = [last_name(one) for one in m.findall(node, m.Attribute(value=own))]
    if any(hasattr(torch.Tensor, one) and not any(hasattr(cls, one) for cls in FOREIGN) for one in attributes):
        return True
    products = [code(side) for one in m.findall(node, MATMUL) for side in (one.left, one.right)]  # type: ignore[attr-defined]
    indexed = any(len(one.slice) > 1 for one in m.findall(node, m.Subscript(value=own)))  # type: ignore[attr-defined]
    first = m.Call(func=m.Attribute(m.Name("torch") | m.Name("F")), args=[m.Arg(own, keyword=None), m.ZeroOrMore()])
    called = any(not FACTORIES.fullmatch(last_name(one.func)) for one in m.findall(node, first))  # type: ignore[attr-defined]
    return name in products or indexed or called
