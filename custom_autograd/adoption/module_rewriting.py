"""Rewrites modules that declare ops and Functions in PyTorch's ways: new source, and a line about each place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider

from custom_autograd.adoption.forward_rewriting import NotMechanical, code, names_in
from custom_autograd.adoption.function_rewriting import name_of_op, rewritten
from custom_autograd.adoption.library_rewriting import LibraryOps, namespace_of_helper
from custom_autograd.frozen_dataclass import dataclass

MOVED = ("custom_op", "triton_op", "wrap_triton")
"""Names of torch.library that this package has, too."""


@dataclass(frozen=True, slots=True)
class Place:
    """One declaration that was found.

    Attributes:
        line: where it is.
        name: of the class or the op.
        reason: why it stays as it is; empty if it is rewritten.
        op: the variable that holds the op, if it was a Function.
    """

    line: int
    name: str
    reason: str = ""
    op: str = ""


@dataclass(frozen=True, slots=True)
class RecordedFunction:
    """What recorded calls say of a Function.

    Attributes:
        types: by parameter of forward, its annotation.
        samples: the source of arguments of these calls, for `from_function`; empty if it cannot be an op.
        reason: why not.
    """

    types: Mapping[str, str] = field(default_factory=dict)
    samples: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RewrittenModule:
    """A module before and after."""

    path: Path
    before: str
    after: str
    places: tuple[Place, ...]


def rewrite(
    sources: Mapping[Path, str], namespace: str, recorded: Mapping[str, RecordedFunction]
) -> list[RewrittenModule]:
    """Return each module rewritten.

    Args:
        sources: of the modules, by file.
        namespace: of the ops that Functions become.
        recorded: by name of a class.
    """
    modules = {path: MetadataWrapper(cst.parse_module(text)) for path, text in sources.items()}
    helper: dict[str, str] = {}
    for one in modules.values():
        helper |= namespace_of_helper(one.module)
    tops = Counter(name for one in modules.values() for name in _functions_at_the_top(one.module))
    recorded = {name: known for name, known in recorded.items() if tops[name] == 1}
    elsewhere = {name for one in modules.values() for name in _used_otherwise(one.module)}
    elsewhere |= {name for name, count in tops.items() if count > 1}
    rewriters = {path: _ModuleRewriter(one, namespace, recorded, helper, elsewhere) for path, one in modules.items()}
    first = {path: one.rewritten() for path, one in rewriters.items()}
    ops = {place.name: place.op for one in rewriters.values() for place in one.places if place.op}
    found = []
    for path, rewriter in rewriters.items():
        here = {*_functions_at_the_top(modules[path].module), *_imported_from(modules[path].module, m.DoNotCare())}
        own = {name: op for name, op in ops.items() if name in here}
        found.append(RewrittenModule(path, sources[path], _with_ops(first[path], own), tuple(rewriter.places)))
    return found


def _functions_at_the_top(module: cst.Module) -> list[str]:
    return [one.name.value for one in module.body if isinstance(one, cst.ClassDef) and _is_function(one)]


def _used_otherwise(module: cst.Module) -> set[str]:
    """Return the classes that a module uses other than as `Class.apply`: those must stay."""
    applied = module.visit(_Applied({}))
    texts = {one.value.strip("\"'") for one in m.findall(module, m.SimpleString()) if isinstance(one, cst.SimpleString)}
    return {*names_in(applied), *texts}


class _Applied(cst.CSTTransformer):
    """Puts ops in place of `Class.apply` and of imports of the class; without an op it leaves both out."""

    def __init__(self, ops: Mapping[str, str]) -> None:
        super().__init__()
        self._ops = ops

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        if original_node.attr.value == "apply" and isinstance(original_node.value, cst.Name):
            name = original_node.value.value
            return (
                cst.Name(self._ops.get(name, name))
                if name in self._ops
                else cst.Name("_")
                if not self._ops
                else updated_node
            )
        return updated_node

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return True

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        return updated_node if self._ops else updated_node.with_changes(name=cst.Name("_"))

    def leave_ImportAlias(self, original_node: cst.ImportAlias, updated_node: cst.ImportAlias) -> cst.ImportAlias:
        name = code(original_node.name)
        if not self._ops:  # under another name it is not followed
            return updated_node if original_node.asname else updated_node.with_changes(name=cst.Name("_"))
        return updated_node.with_changes(name=cst.Name(self._ops[name])) if name in self._ops else updated_node

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        """Leave out `swish = swish`."""
        one = updated_node.body[0] if len(updated_node.body) == 1 else None
        is_same = isinstance(one, cst.Assign) and [code(target.target) for target in one.targets] == [code(one.value)]
        return cst.RemoveFromParent() if self._ops and is_same else updated_node


def _with_ops(module: cst.Module, ops: Mapping[str, str]) -> str:
    return module.visit(_Applied(ops)).code if ops else module.code


class _ModuleRewriter(cst.CSTTransformer):
    """Rewrites the declarations of one module, and notes each place."""

    def __init__(
        self,
        wrapper: MetadataWrapper,
        namespace: str,
        recorded: Mapping[str, RecordedFunction],
        helper: dict[str, str],
        elsewhere: set[str],
    ) -> None:
        super().__init__()
        self._module = wrapper.module
        self._positions = wrapper.resolve(PositionProvider)
        self._namespace, self._recorded, self._elsewhere = namespace, recorded, elsewhere
        self._taken = _defined_in(self._module)
        self._aliases = _aliases_in(self._module)
        self._needed: dict[str, dict[str, None]] = {"custom_autograd": {}, "torch": {}}
        self._moved = {code(one) for one in m.findall(self._module, MOVED_ATTRIBUTE)} | _imported(self._module)
        self._library = LibraryOps(self._module, self._line, helper, sorted(self._taken))
        self.places = [Place(line, *row) for line, row in self._library.reasons.items()]

    def rewritten(self) -> cst.Module:
        """Return the module, with the imports that it needs."""
        found = self._module.visit(self)
        if any(not reason for _, reason in self._library.reasons.values()):
            self._need("custom_autograd", "custom_op")
        self.places.sort(key=lambda place: place.line)
        if self._is_bound("Tensor"):
            self._needed["torch"].clear()
        rows = [f"from {module} import {', '.join(sorted(names))}" for module, names in self._needed.items() if names]
        at = 1 + max((i for i, one in enumerate(found.body) if m.matches(one, IMPORT)), default=-1)
        after = [cst.parse_statement(row) for row in reversed(rows)]
        return found.with_changes(body=[*found.body[:at], *after, *found.body[at:]])

    def _is_bound(self, name: str) -> bool:
        imports = m.findall(self._module, m.ImportFrom() | m.Import())
        return any(re.search(rf"\b{name}\b", code(one)) for one in imports)

    def _line(self, node: cst.CSTNode) -> int:
        return int(self._positions[node].start.line)

    def _need(self, module: str, name: str, asname: str | None = None) -> None:
        self._needed[module][name if asname is None else f"{name} as {asname}"] = None

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return not _is_function(node)

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> Any:
        """Put an op in place of a Function, or beside it."""
        name = original_node.name.value
        if not _is_function(original_node):
            return updated_node
        op = self._aliases.get(name) or name_of_op(name)
        op = f"{op}_op" if op in self._taken and op not in self._aliases.values() else op
        known = self._recorded.get(name, RecordedFunction())
        try:
            if original_node not in self._module.body:
                raise NotMechanical("it is defined within other code")
            if name in self._elsewhere:
                raise NotMechanical("the class is used other than through apply")
            found = rewritten(original_node, op, self._namespace, known.types)
        except NotMechanical as reason:
            return self._beside(original_node, op, known, str(reason))
        self.places.append(Place(self._line(original_node), name, op=op))
        self._need("custom_autograd", "custom_op")
        self._need("torch", "Tensor")
        return cst.FlattenSentinel(found)

    def _beside(self, node: cst.ClassDef, op: str, known: RecordedFunction, reason: str) -> Any:
        """Return the class with the op that from_function makes of it, if recorded calls say that it can."""
        name = node.name.value
        reason = f"{reason}; {known.reason}" if known.reason else reason
        is_op = bool(known.samples) and node in self._module.body
        self.places.append(Place(self._line(node), name, "" if is_op else reason, op if is_op else ""))
        if not is_op:
            return node
        self._need("custom_autograd", "from_function")
        text = f'{op} = from_function({name}, "{self._namespace}::{op}", samples={known.samples})'
        blank = [cst.EmptyLine(indent=False)] * 2
        return cst.FlattenSentinel([node, cst.parse_statement(text).with_changes(leading_lines=blank)])

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        """Put the declaration of an op in place of a definition or a kernel of a library."""
        texts = self._library.statements(original_node)
        if texts is None:
            return updated_node
        if not texts:
            return cst.RemoveFromParent()
        found = [cst.parse_statement(text) for text in texts]
        return cst.FlattenSentinel([found[0].with_changes(leading_lines=updated_node.leading_lines), *found[1:]])

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """Note a declaration with `torch.library.custom_op`."""
        if code(original_node.func) in self._moved and not code(original_node.func).endswith("wrap_triton"):
            op = code(original_node.args[0].value).strip("\"'") if original_node.args else "custom_op"
            self.places.append(Place(self._line(original_node), op))
        return updated_node

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        if code(original_node) not in self._moved:
            return updated_node
        self._need("custom_autograd", original_node.attr.value)
        return original_node.attr

    def leave_ImportFrom(self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom) -> Any:
        """Import from this package what it has of torch.library."""
        if original_node.module is None or code(original_node.module) != "torch.library":
            return updated_node
        if isinstance(updated_node.names, cst.ImportStar):
            return updated_node
        rest = [one for one in updated_node.names if code(one.name) not in MOVED]
        for one in updated_node.names:
            if one not in rest:
                self._need("custom_autograd", code(one.name), one.evaluated_alias)
        if not rest:
            return cst.RemoveFromParent()
        return updated_node.with_changes(names=[*rest[:-1], rest[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)])


IMPORT = m.SimpleStatementLine(body=[m.Import() | m.ImportFrom()])
MOVED_ATTRIBUTE = m.Attribute(
    value=m.Attribute(value=m.Name("torch"), attr=m.Name("library")),
    attr=m.MatchIfTrue(lambda attr: attr.value in MOVED),
)


def _is_function(node: cst.ClassDef) -> bool:
    bases = [code(one.value) for one in node.bases]
    return any(
        re.fullmatch(r"((torch\.)?autograd\.)?Function|torch\.autograd\.function\.Function", base) for base in bases
    )


def _imported(module: cst.Module) -> set[str]:
    """Return the variables that hold what is imported from torch.library."""
    found = _imported_from(module, m.Attribute(m.Name("torch"), m.Name("library")))
    return {variable for name, variable in found.items() if name in MOVED}


def _imported_from(module: cst.Module, source: Any) -> dict[str, str]:
    """Return the variables that hold what is imported from modules, by name there."""
    found: dict[str, str] = {}
    for one in m.findall(module, m.ImportFrom(module=source)):
        names = one.names if isinstance(one, cst.ImportFrom) and not isinstance(one.names, cst.ImportStar) else ()
        found |= {code(alias.name): alias.evaluated_alias or code(alias.name) for alias in names}
    return found


def _defined_in(module: cst.Module) -> set[str]:
    """Return every name that a module uses or defines."""
    functions = [one.name.value for one in m.findall(module, m.FunctionDef()) if isinstance(one, cst.FunctionDef)]
    return {*names_in(module), *functions}


def _aliases_in(module: cst.Module) -> dict[str, str]:
    """Return the variables at the top of a module that hold the `apply` of a class, by class."""
    found = {}
    for statement in module.body:
        one = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) and statement.body else None
        if isinstance(one, cst.Assign) and m.matches(one.value, m.Attribute(m.Name(), m.Name("apply"))):
            found[code(one.value).partition(".")[0]] = code(one.targets[0].target)
    return found
