"""Parse a package into syntax trees: the parents of a node, and the calls of a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Source:
    """The syntax trees of a package, with the parent of each node and every call by the name of its function."""

    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    paths: dict[ast.AST, Path] = field(default_factory=dict)
    calls: dict[str, list[ast.Call]] = field(default_factory=dict)
    functions: dict[str, list[ast.FunctionDef]] = field(default_factory=dict)
    imported: dict[Path, set[str]] = field(default_factory=dict)
    typed: dict[str, set[str]] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    bound: dict[tuple[Path, str], str] = field(default_factory=dict)

    def add(self, path: Path) -> None:
        """Read one file."""
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.paths[tree] = path
        for row in tree.body:
            if isinstance(row, ast.Assign) and isinstance(row.value, ast.Constant) and isinstance(row.value.value, str):
                self.constants.update((name_of(target), row.value.value) for target in row.targets)
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
            if isinstance(node, ast.Call):
                self._add_call(path, node)
            if isinstance(node, ast.Assign) and _bound_error(node.value):
                self.bound.update(((path, name_of(target)), _bound_error(node.value)) for target in node.targets)
            if isinstance(node, ast.FunctionDef):
                self.functions.setdefault(node.name, []).append(node)
            if isinstance(node, ast.ImportFrom):
                self.imported.setdefault(path, set()).update(alias.name for alias in node.names)
            if isinstance(node, ast.arg) and isinstance(node.annotation, ast.Name):
                self.typed.setdefault(node.annotation.id, set()).add(node.arg)

    def _add_call(self, path: Path, node: ast.Call) -> None:
        self.calls.setdefault(name_of(node.func), []).append(node)
        if _bound_error(node.func):  # refusing(declaration, function)(problem)
            self.calls.setdefault(AT_ONCE, []).append(node)
            self.bound[path, AT_ONCE] = _bound_error(node.func)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, the nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function_of(self, node: ast.AST) -> ast.FunctionDef | None:
        """Return the function whose body contains a node."""
        return next((row for row in self.above(node) if isinstance(row, ast.FunctionDef)), None)

    def callers_of(self, function: ast.FunctionDef) -> list[ast.Call]:
        """Return the calls of a function: those in its file, and unambiguous ones in other files."""
        owner = self.parents[function]
        if function.name == "__call__" and isinstance(owner, ast.ClassDef):
            return [call for name in self.typed.get(owner.name, ()) for call in self.calls.get(name, [])]
        return [call for call in self.calls.get(function.name, []) if self._means(call, function)]

    def _means(self, call: ast.Call, function: ast.FunctionDef) -> bool:
        here, there = self.path_of(call), self.path_of(function)
        if here == there:
            return True
        if isinstance(call.func, ast.Name):
            return function.name in self.imported.get(here, ())
        is_method = isinstance(self.parents[function], ast.ClassDef)
        is_only_one = len(self.functions[function.name]) == 1
        receiver = name_of(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        return (is_method and is_only_one) or receiver == there.stem

    def path_of(self, node: ast.AST) -> Path:
        """Return the file that contains a node."""
        return self.paths[list(self.above(node))[-1]]


def _bound_error(node: ast.expr) -> str:
    """Return the class that an expression makes of a problem, as `partial(origin.error, KernelError)`; or nothing."""
    name = name_of(node.func) if isinstance(node, ast.Call) else ""
    if name == "refusing":
        return "RegistrationError"
    is_partial = isinstance(node, ast.Call) and name == "partial" and len(node.args) == 2
    return name_of(node.args[1]) if is_partial and name_of(node.args[0]) == "error" else ""


AT_ONCE = "refusing()"
"""The name of calls of what `refusing` returns, where it has no other."""


def name_of(node: ast.AST) -> str:
    """Return the last part of a name, or an empty string."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
