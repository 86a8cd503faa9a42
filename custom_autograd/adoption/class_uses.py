"""Finds the uses of Functions in the modules of a package: calls of `apply`, names, and other uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import libcst as cst
import libcst.matchers as m

from custom_autograd.adoption.syntax import code, last_name
from custom_autograd.frozen_dataclass import dataclass

Scopes = tuple[cst.FunctionDef | cst.ClassDef, ...]


@dataclass(frozen=True, slots=True)
class ApplyCall:
    """One call of the `apply` of a class, with the functions and classes around it, the innermost last."""

    arguments: tuple[cst.BaseExpression, ...]
    scopes: Scopes


@dataclass(frozen=True, slots=True)
class ClassUses:
    """Uses of classes in the modules of a package.

    Attributes:
        classes: number of Functions of each name, with those that inherit from a Function.
        tops: the same for Functions at the top of a module.
        calls: by class, each call of its `apply`.
        named: the classes whose name is used where it is not replaced: in a string such as those of `__all__`, as an
            attribute of a module, under another name, or in `__init__.py`.
        others: by class, any other use, for which the class must stay.
    """

    classes: Counter[str]
    tops: Counter[str]
    calls: dict[str, list[ApplyCall]] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    others: dict[str, str] = field(default_factory=dict)


def functions_in(modules: Iterable[cst.Module]) -> list[cst.ClassDef]:
    """Return the Functions in modules, with classes that inherit from one of them."""
    definitions = [one for module in modules for one in _classes_in(module)]
    names: set[str] = set()
    while new := {*_names(one for one in definitions if is_function(one, names))} - names:
        names |= new
    return [one for one in definitions if is_function(one, names)]


def uses_in(modules: Mapping[Path, cst.Module]) -> ClassUses:
    """Return the uses of Functions that modules define."""
    tops = [one for module in modules.values() for one in module.body]
    found = functions_in(modules.values())
    uses = ClassUses(Counter(_names(found)), Counter(_names(one for one in found if one in tops)))
    for path, module in modules.items():
        module.visit(_Visitor(uses, module, is_public=path.name == "__init__.py"))
    return uses


def _classes_in(module: cst.Module) -> list[cst.ClassDef]:
    return [one for one in m.findall(module, m.ClassDef()) if isinstance(one, cst.ClassDef)]


def _names(nodes: Iterable[cst.ClassDef]) -> list[str]:
    return [one.name.value for one in nodes]


def is_function(node: cst.ClassDef, classes: Iterable[str] = ()) -> bool:
    """Return True for a subclass of `torch.autograd.Function`, or of one of some classes."""
    bases = [one.value for one in node.bases]
    return any(code(base) in FUNCTIONS or last_name(base) in classes for base in bases)


FUNCTIONS = ("Function", "autograd.Function", "torch.autograd.Function", "torch.autograd.function.Function")


def aliases_in(module: cst.Module) -> dict[str, str]:
    """Return the variables at the top of a module that are the `apply` of a class, by class."""
    found = {}
    for statement in module.body:
        one = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) and statement.body else None
        if isinstance(one, cst.Assign) and m.matches(one.value, m.Attribute(m.Name(), m.Name("apply"))):
            found[code(one.value).partition(".")[0]] = code(one.targets[0].target)
    return found


def imported_in(module: cst.Module, source: Any = None) -> dict[str, str]:
    """Return the variables that a module imports from others, by their name there."""
    found: dict[str, str] = {}
    for one in m.findall(module, m.ImportFrom(module=m.DoNotCare() if source is None else source)):
        names = one.names if isinstance(one, cst.ImportFrom) and not isinstance(one.names, cst.ImportStar) else ()
        found |= {code(alias.name): alias.evaluated_alias or code(alias.name) for alias in names}
    return found


class _Visitor(cst.CSTVisitor):
    """Records each use of a class."""

    def __init__(self, uses: ClassUses, module: cst.Module, *, is_public: bool) -> None:
        super().__init__()
        self._uses, self._is_public = uses, is_public
        self._aliases = {alias: name for name, alias in aliases_in(module).items()}
        self._here = {*_names(_classes_in(module)), *imported_in(module)}
        self._scopes: Scopes = ()

    def visit_Call(self, node: cst.Call) -> None:
        is_apply = isinstance(node.func, cst.Attribute) and node.func.attr.value == "apply"
        inner = node.func.value if isinstance(node.func, cst.Attribute) else node.func
        name = last_name(inner) if is_apply else self._aliases.get(code(node.func), "")
        if name in self._uses.classes:
            arguments = tuple([one.value for one in node.args])
            self._uses.calls.setdefault(name, []).append(ApplyCall(arguments, self._scopes))

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        name = last_name(node.value)
        if name in self._uses.classes:
            if node.attr.value != "apply":
                self._uses.others[name] = code(node)
            elif not isinstance(node.value, cst.Name) or name not in self._here:
                self._uses.named.add(name)
            return False
        if node.attr.value in self._uses.classes:
            self._uses.others[node.attr.value] = code(node)
        node.value.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        if node.value in self._uses.classes:
            self._uses.others[node.value] = "its name as a value"

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        if node.value.strip("\"'") in self._uses.classes:
            self._uses.named.add(node.value.strip("\"'"))

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        for one in node.names if not isinstance(node.names, cst.ImportStar) else ():
            if (one.asname is not None or self._is_public) and last_name(one.name) in self._uses.classes:
                self._uses.named.add(last_name(one.name))
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        for base in node.bases:
            if last_name(base.value) in self._uses.classes:
                self._uses.others[last_name(base.value)] = f"the subclass '{node.name.value}'"
        self._scopes += (node,)
        node.body.visit(self)
        self._scopes = self._scopes[:-1]
        return False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._scopes += (node,)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._scopes = self._scopes[:-1]
