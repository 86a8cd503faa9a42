"""Rewrites modules that declare Functions, or ops of torch.library: new source, and a list of the declarations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.metadata import PositionProvider

from custom_autograd.adoption.class_uses import ClassUses, aliases_in, functions_in, imported_in, is_function, uses_in
from custom_autograd.adoption.function_rewriting import name_of_op, rewritten
from custom_autograd.adoption.library_rewriting import LibraryOps, namespace_of_helper
from custom_autograd.adoption.syntax import BLANK, TENSOR, NotMechanical, code, names_in, parse_statements
from custom_autograd.frozen_dataclass import dataclass

MOVED = ("custom_op", "triton_op", "wrap_triton")
"""Names in torch.library that this package has, too."""


@dataclass(frozen=True, slots=True)
class Place:
    """One declaration in a module.

    Attributes:
        line: its line number.
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
        samples: source of the arguments of these calls, for `from_function`; empty if it cannot make an op.
        reason: why it cannot.
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
    """Return each module rewritten, with the ops of Functions in a namespace."""
    parsed, unparsed = _parsed(sources)
    package = _Package(parsed, namespace, recorded)
    rewriters = {path: _ModuleRewriter(path, module, package) for path, module in parsed.items()}
    first = {path: one.rewritten() for path, one in rewriters.items()}
    ops = {name: op for one in rewriters.values() for name, op in one.ops.items()}
    found = []
    for path, text in sources.items():
        after, places = text, [unparsed[path]] if path in unparsed else []
        if path in parsed:
            here = {*rewriters[path].ops, *imported_in(parsed[path])}
            own = {name: op for name, op in ops.items() if name in here}
            module = first[path].visit(_Applied(own, package.uses)) if own else first[path]
            after, places = module.code, rewriters[path].places
        found.append(RewrittenModule(path, text, after, tuple(places)))
    return found


def _parsed(sources: Mapping[Path, str]) -> tuple[dict[Path, cst.Module], dict[Path, Place]]:
    """Return the modules that declare ops or Functions, or use these Functions, and those that cannot be read."""
    found = {path: _parse(path, text) for path, text in sources.items() if DECLARES.search(text)}
    names = {one.name.value for one in functions_in([one for one in found.values() if isinstance(one, cst.Module)])}
    uses = re.compile(rf"\b({'|'.join(names)})\b" if names else r"(?!)")
    found |= {path: _parse(path, text) for path, text in sources.items() if path not in found and uses.search(text)}
    parsed = {path: one for path, one in found.items() if isinstance(one, cst.Module)}
    return parsed, {path: one for path, one in found.items() if isinstance(one, Place)}


def _parse(path: Path, text: str) -> cst.Module | Place:
    try:
        return cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        return Place(error.raw_line, path.stem, "the file is not Python that libcst can read")
    except UnicodeEncodeError as error:
        return Place(
            text.count("\n", 0, error.start) + 1, path.stem, "the file is not in the encoding that it declares"
        )


DECLARES = re.compile(r"\bFunction\b|\bLibrary\b|\btorch\.library\b|\bdirect_register_custom_op\b")
"""Words in modules that declare ops or Functions."""


class _Package:
    """Facts about the modules that are rewritten together, and the variables of the ops so far."""

    def __init__(
        self, modules: Mapping[Path, cst.Module], namespace: str, recorded: Mapping[str, RecordedFunction]
    ) -> None:
        self.namespace, self.recorded = namespace, recorded
        self.uses = uses_in(modules)
        self.helper: dict[str, str] = {}
        for module in modules.values():
            self.helper |= namespace_of_helper(module)
        self.names = {path: _defined_in(module) for path, module in modules.items()}
        self.ops: set[str] = set()


class _Applied(cst.CSTTransformer):
    """Replaces `Class.apply` and imports of the class by the op."""

    def __init__(self, ops: Mapping[str, str], uses: ClassUses) -> None:
        super().__init__()
        self._ops, self._uses = ops, uses

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        name = original_node.value.value if isinstance(original_node.value, cst.Name) else ""
        is_apply = original_node.attr.value == "apply" and name in self._ops
        return cst.Name(self._ops[str(name)]) if is_apply else updated_node

    def leave_ImportAlias(self, original_node: cst.ImportAlias, updated_node: cst.ImportAlias) -> Any:
        name = code(original_node.name)
        if name not in self._ops or original_node.asname is not None:
            return updated_node
        op = updated_node.with_changes(name=cst.Name(self._ops[name]))
        if name not in self._uses.others and name not in self._uses.named:
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
    """Rewrites the declarations of one module, and lists them; `ops` has the variable of an op by class."""

    def __init__(self, path: Path, module: cst.Module, package: _Package) -> None:
        super().__init__()
        wrapper = cst.MetadataWrapper(module, unsafe_skip_copy=True)
        self._module, self._positions = module, wrapper.resolve(PositionProvider)
        self._stem, self._package = path.stem, package
        self._taken = set(package.names[path])
        self._elsewhere = set().union(*(names for other, names in package.names.items() if other != path))
        self._aliases = aliases_in(module)
        self._scopes: list[cst.ClassDef | cst.FunctionDef] = []
        self._before: list[cst.BaseStatement] = []
        self._needed: dict[str, dict[str, None]] = {"custom_autograd": {}, "torch": {}}
        imported = imported_in(module, m.Attribute(m.Name("torch"), m.Name("library")))
        self._moved = {code(one) for one in m.findall(module, MOVED_ATTRIBUTE)}
        self._moved |= {variable for name, variable in imported.items() if name in MOVED}
        self._library = LibraryOps(module, package.helper, self._taken)
        self.places = [Place(self._line(node), *row) for node, row in self._library.reasons.items()]
        self.ops: dict[str, str] = {}

    def rewritten(self) -> cst.Module:
        """Return the module, with the imports that it needs."""
        found = self._module.visit(self)
        if any(not reason for _, reason in self._library.reasons.values()):
            self._need("custom_autograd", "custom_op")
        self.places.sort(key=lambda place: place.line)
        imports = m.findall(self._module, m.ImportFrom() | m.Import())
        if any(TENSOR.search(code(one)) for one in imports):
            self._needed["torch"].clear()
        rows = [f"from {module} import {', '.join(sorted(names))}" for module, names in self._needed.items() if names]
        at = 1 + max((i for i, one in enumerate(found.body) if m.matches(one, IMPORT)), default=-1)
        after = [cst.parse_statement(row) for row in reversed(rows)]
        return found.with_changes(body=[*found.body[:at], *after, *found.body[at:]])

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
        return cst.FlattenSentinel([function, *parse_statements(texts, BLANK)])

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> Any:
        """Replace a Function by an op, or declare an op after it."""
        self._scopes.pop()
        if not self._is_function(original_node):
            return self._after_nested(updated_node)
        cls = original_node.name.value
        name = ".".join([*(one.name.value for one in self._scopes), cls])
        op = self._name_of_op(cls)
        uses, namespace = self._package.uses, self._package.namespace
        known = self._package.recorded.get(name) if uses.classes[cls] == 1 else None
        known = known or RecordedFunction()
        try:
            self._check_uses(cls)
            found = rewritten(original_node, op, namespace, known.types, uses.calls.get(cls, ()))
        except NotMechanical as reason:
            return self._with_from_function(original_node, name, op, known, str(reason))
        self._note(original_node, name, op)
        self._need("custom_autograd", "custom_op")
        self._need("torch", "Tensor")
        if self._scopes:
            self._before += found
            return _applying(original_node, op).with_changes(leading_lines=original_node.leading_lines)
        if cls in uses.named:
            return cst.FlattenSentinel([*found, _applying(original_node, op)])
        self.ops[name] = op
        return cst.FlattenSentinel(found)

    def _note(self, node: cst.ClassDef, name: str, op: str) -> None:
        """Record that a Function becomes an op."""
        self.places.append(Place(self._line(node), name, op=op))
        self._taken.add(op)
        self._package.ops.add(op)

    def _is_function(self, node: cst.ClassDef) -> bool:
        return is_function(node, self._package.uses.classes)

    def _after_nested(self, node: cst.BaseStatement) -> Any:
        """Return a class or a function, after the ops of the Functions in it."""
        if self._scopes or not self._before:
            return node
        first, *rest = self._before
        self._before = []
        lines = [*BLANK, *(line for line in getattr(first, "leading_lines", ()) if line.comment)]
        return cst.FlattenSentinel([first.with_changes(leading_lines=lines), *rest, node])

    def _name_of_op(self, cls: str) -> str:
        alias = "" if self._scopes else self._aliases.get(cls, "")
        is_own = bool(alias) and alias not in self._elsewhere
        name = alias if is_own else name_of_op(cls)
        name = f"{name}_op" if not is_own and name in self._taken | self._elsewhere else name
        while name in self._package.ops:
            name = f"{name}_{self._stem}"
        return name

    def _check_uses(self, cls: str) -> None:
        """Raise if the class must stay for code that uses it otherwise."""
        if any(isinstance(one, cst.FunctionDef) for one in self._scopes):
            raise NotMechanical("it is defined within a function")
        if self._package.uses.tops[cls] > 1 and not self._scopes:
            raise NotMechanical("another class has its name")
        if cls in self._package.uses.others:
            raise NotMechanical(f"the class is used other than through apply: {self._package.uses.others[cls]}")

    def _with_from_function(
        self, node: cst.ClassDef, name: str, op: str, known: RecordedFunction, reason: str
    ) -> cst.ClassDef | cst.FlattenSentinel[cst.CSTNode]:
        """Return the class, with the op of from_function if there are samples for it."""
        if not known.samples or self._scopes:
            reason = f"{reason}; {known.reason}" if known.reason else reason
            self.places.append(Place(self._line(node), name, reason))
            return node
        self._note(node, name, op)
        self.ops[name] = op
        self._need("custom_autograd", "from_function")
        text = f'{op} = from_function({name}, "{self._package.namespace}::{op}", samples={known.samples})'
        return cst.FlattenSentinel([node, *parse_statements([text], BLANK)])

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        """Put the declaration of an op in place of a definition or a kernel of a library."""
        texts = self._library.statements(original_node)
        if not texts:
            return updated_node if texts is None else cst.RemoveFromParent()
        lines = [*self._library.comments.get(original_node, ()), *updated_node.leading_lines]
        return cst.FlattenSentinel(parse_statements(texts, lines))

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """Record a declaration with `torch.library.custom_op`."""
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
        """Import the names that this package has from it."""
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
    return found.with_changes(leading_lines=BLANK, decorators=node.decorators)


def _defined_in(module: cst.Module) -> set[str]:
    """Return every name that a module uses or defines."""
    functions = [one.name.value for one in m.findall(module, m.FunctionDef()) if isinstance(one, cst.FunctionDef)]
    return {*names_in(module), *functions}
