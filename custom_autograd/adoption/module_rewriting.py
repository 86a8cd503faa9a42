"""Rewrites modules that declare ops and Functions in PyTorch's ways: new source, and a line about each place."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.metadata import PositionProvider

from custom_autograd.adoption.class_uses import ClassUses, aliases_in, functions_in, imported_in, is_function, uses_in
from custom_autograd.adoption.function_rewriting import name_of_op, rewritten
from custom_autograd.adoption.library_rewriting import LibraryOps, namespace_of_helper
from custom_autograd.adoption.parameter_types import Evidence
from custom_autograd.adoption.syntax import NotMechanical, code, names_in
from custom_autograd.frozen_dataclass import dataclass

MOVED = ("custom_op", "triton_op", "wrap_triton")
"""Names of torch.library that this package also has."""


@dataclass(frozen=True, slots=True)
class Place:
    """One declaration in a module.

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
    """Facts about a Function from recorded calls.

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
    parsed = {path: cst.parse_module(text) for path, text in sources.items() if DECLARES.search(text)}
    names = {one.name.value for one in functions_in(parsed.values())}
    uses = re.compile(rf"\b({'|'.join(names)})\b" if names else r"(?!)")
    parsed |= {
        path: cst.parse_module(text) for path, text in sources.items() if uses.search(text) and path not in parsed
    }
    package = uses_in(parsed)
    helper: dict[str, str] = {}
    for module in parsed.values():
        helper |= namespace_of_helper(module)
    defined = {path: _defined_in(one) for path, one in parsed.items()}
    taken: set[str] = set()
    rewriters: dict[Path, _ModuleRewriter] = {}
    for path, one in parsed.items():
        elsewhere = set().union(*(names for other, names in defined.items() if other != path))
        wrapper = cst.MetadataWrapper(one, unsafe_skip_copy=True)
        rewriters[path] = _ModuleRewriter(path.stem, wrapper, namespace, recorded, helper, package, taken, elsewhere)
    first = {path: one.rewritten() for path, one in rewriters.items()}
    ops = {name: op for one in rewriters.values() for name, op in one.ops.items()}
    staying = [name for name in ops if name in package.others or name in package.named]
    found = []
    for path, text in sources.items():
        after, places = text, []
        if path in parsed:
            here = {*rewriters[path].ops, *imported_in(parsed[path])}
            own = {name: op for name, op in ops.items() if name in here}
            module = first[path].visit(_Applied(own, staying)) if own else first[path]
            after, places = module.code, rewriters[path].places
        found.append(RewrittenModule(path, text, after, tuple(places)))
    return found


DECLARES = re.compile(r"\bFunction\b|\bLibrary\b|\btorch\.library\b|\bdirect_register_custom_op\b")
"""Words of modules that declare ops or Functions."""


class _Applied(cst.CSTTransformer):
    """Replaces `Class.apply` and imports of the class by the op."""

    def __init__(self, ops: Mapping[str, str], staying: Collection[str]) -> None:
        super().__init__()
        self._ops, self._staying = ops, staying

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        name = original_node.value.value if isinstance(original_node.value, cst.Name) else ""
        is_apply = original_node.attr.value == "apply" and name in self._ops
        return cst.Name(self._ops[str(name)]) if is_apply else updated_node

    def leave_ImportAlias(self, original_node: cst.ImportAlias, updated_node: cst.ImportAlias) -> Any:
        name = code(original_node.name)
        if name not in self._ops or original_node.asname is not None:
            return updated_node
        op = updated_node.with_changes(name=cst.Name(self._ops[name]))
        if name not in self._staying:
            return op
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        return cst.FlattenSentinel([updated_node.with_changes(comma=comma), op])

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        """Leave out `swish = swish`."""
        one = updated_node.body[0] if len(updated_node.body) == 1 else None
        is_same = isinstance(one, cst.Assign) and [code(target.target) for target in one.targets] == [code(one.value)]
        return cst.RemoveFromParent() if is_same else updated_node


class _ModuleRewriter(cst.CSTTransformer):
    """Rewrites the declarations of one module, and lists them.

    Attributes:
        ops: by class, the variable of the op that its calls of `apply` become.
    """

    def __init__(
        self,
        stem: str,
        wrapper: cst.MetadataWrapper,
        namespace: str,
        recorded: Mapping[str, RecordedFunction],
        helper: dict[str, str],
        package: ClassUses,
        names: set[str],
        elsewhere: set[str],
    ) -> None:
        super().__init__()
        self._module = wrapper.module
        self._positions = wrapper.resolve(PositionProvider)
        self._namespace, self._recorded, self._package = namespace, recorded, package
        self._stem, self._names, self._elsewhere = stem, names, elsewhere
        self.ops: dict[str, str] = {}
        self._scopes: list[cst.ClassDef | cst.FunctionDef] = []
        self._before: list[cst.BaseStatement] = []
        self._taken = _defined_in(self._module)
        self._aliases = aliases_in(self._module)
        self._needed: dict[str, dict[str, None]] = {"custom_autograd": {}, "torch": {}}
        imported = imported_in(self._module, m.Attribute(m.Name("torch"), m.Name("library")))
        self._moved = {code(one) for one in m.findall(self._module, MOVED_ATTRIBUTE)}
        self._moved |= {variable for name, variable in imported.items() if name in MOVED}
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
        self._scopes.append(node)
        return not self._is_function(node)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._scopes.append(node)

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> Any:
        """Put declarations of ops after the function that was decorated as their kernel."""
        self._scopes.pop()
        moved = [one for one in original_node.decorators if self._library.statements(one) is not None]
        if not moved:
            return self._after_nested(updated_node)
        rest = [one for one in original_node.decorators if one not in moved]
        lines = [line for one in moved for line in (*self._library.comments.get(one, ()), *one.leading_lines)]
        texts = [text for one in moved for text in self._library.statements(one) or ()]
        function = updated_node.with_changes(
            decorators=rest, leading_lines=[*updated_node.leading_lines, *lines], lines_after_decorators=()
        )
        blank = [cst.EmptyLine(indent=False)] * 2
        after = [cst.parse_statement(text) for text in texts]
        return cst.FlattenSentinel([function, after[0].with_changes(leading_lines=blank), *after[1:]])

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> Any:
        """Replace a Function by an op, or declare an op next to it."""
        self._scopes.pop()
        if not self._is_function(original_node):
            return self._after_nested(updated_node)
        name = ".".join([*(one.name.value for one in self._scopes), original_node.name.value])
        op = self._name_of_op(original_node.name.value)
        is_only = self._package.classes[original_node.name.value] == 1
        known = self._recorded.get(name, RecordedFunction()) if is_only else RecordedFunction()
        try:
            self._check_uses(original_node)
            found = rewritten(original_node, op, self._namespace, known.types, Evidence(self._package))
        except NotMechanical as reason:
            return self._beside(original_node, name, op, known, str(reason))
        self.places.append(Place(self._line(original_node), name, op=op))
        self._taken.add(op)
        self._names.add(op)
        self._need("custom_autograd", "custom_op")
        self._need("torch", "Tensor")
        if self._scopes:
            self._before += found
            return _applying(original_node, op).with_changes(leading_lines=original_node.leading_lines)
        if original_node.name.value in self._package.named:
            return cst.FlattenSentinel([*found, _applying(original_node, op)])
        self.ops[name] = op
        return cst.FlattenSentinel(found)

    def _is_function(self, node: cst.ClassDef) -> bool:
        return is_function(node, self._package.classes)

    def _after_nested(self, node: cst.BaseStatement) -> Any:
        """Return a class or a function, after the ops of the Functions that it holds."""
        if self._scopes or not self._before:
            return node
        first, *rest = self._before
        self._before = []
        blank = [cst.EmptyLine(indent=False)] * 2
        lines = [*blank, *(line for line in getattr(first, "leading_lines", ()) if line.comment)]
        return cst.FlattenSentinel([first.with_changes(leading_lines=lines), *rest, node])

    def _name_of_op(self, cls: str) -> str:
        alias = "" if self._scopes else self._aliases.get(cls, "")
        is_own = bool(alias) and alias not in self._elsewhere
        name = alias if is_own else name_of_op(cls)
        name = f"{name}_op" if not is_own and name in self._taken | self._elsewhere else name
        while name in self._names:
            name = f"{name}_{self._stem}"
        return name

    def _check_uses(self, node: cst.ClassDef) -> None:
        """Raise if the class must stay for code that uses it otherwise."""
        name = node.name.value
        function = next((one for one in self._scopes if isinstance(one, cst.FunctionDef)), None)
        if function is not None:
            raise NotMechanical("it is defined within a function")
        if self._package.tops[name] > 1 and not self._scopes:
            raise NotMechanical("another class has its name")
        if name in self._package.others:
            raise NotMechanical(f"the class is used other than through apply: {self._package.others[name]}")

    def _beside(self, node: cst.ClassDef, name: str, op: str, known: RecordedFunction, reason: str) -> Any:
        """Return the class with the op that from_function makes of it, if recorded calls say that it can."""
        reason = f"{reason}; {known.reason}" if known.reason else reason
        is_op = bool(known.samples) and not self._scopes
        self.places.append(Place(self._line(node), name, "" if is_op else reason, op if is_op else ""))
        if not is_op:
            return node
        self._taken.add(op)
        self._names.add(op)
        self.ops[name] = op
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
        lines = [*self._library.comments.get(original_node, ()), *updated_node.leading_lines]
        found = [cst.parse_statement(text) for text in texts]
        return cst.FlattenSentinel([found[0].with_changes(leading_lines=lines), *found[1:]])

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


def _applying(node: cst.ClassDef, op: str) -> cst.ClassDef:
    """Return a class of the same name whose `apply` calls the op."""
    lines = (
        f"class {node.name.value}:",
        '    """Calls the op, for code that calls `apply`."""\n',
        f"    apply = staticmethod({op})",
    )
    found = cst.ensure_type(cst.parse_statement("\n".join(lines)), cst.ClassDef)
    return found.with_changes(leading_lines=[cst.EmptyLine(indent=False)] * 2, decorators=node.decorators)


def _defined_in(module: cst.Module) -> set[str]:
    """Return every name that a module uses or defines."""
    functions = [one.name.value for one in m.findall(module, m.FunctionDef()) if isinstance(one, cst.FunctionDef)]
    return {*names_in(module), *functions}
