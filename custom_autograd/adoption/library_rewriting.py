"""Rewrites `Library.define` and `Library.impl`, and helpers such as `direct_register_custom_op`, as declared ops.

lib.define("add(Tensor x) -> Tensor")       left out; its comments stay with the next line
lib.impl("add", add_cpu, "CPU")             add = custom_op("ns::add", add_cpu, schema="(Tensor x) -> Tensor", ...)
lib.impl("add", add_cuda, "CUDA")           add.register_kernel("cuda", add_cuda)
@torch.library.impl(lib, "add", "CUDA")     left out, and the lines above after the function
torch.library.define("ns::add", "(Tensor x) -> Tensor"), torch.library.impl("ns::add", "cuda", ...)   the same
direct_register_custom_op("add", add, ...)  add_op = custom_op("ns::add", add, ...)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import libcst as cst
import libcst.matchers as m

from custom_autograd.adoption.syntax import NotMechanical, code, comments_of, last_name, only_part, tuple_of

Implementation: TypeAlias = tuple[cst.CSTNode, str, str]
"""The statement or decorator that registers a kernel, its dispatch key, and the source of the function."""

COMPOSITE = "CompositeExplicitAutograd"

DEVICES = {"CPU": "cpu", "CUDA": "cuda", "XPU": "xpu", "MPS": "mps", COMPOSITE: None}
"""The device type of the kernels at each key of the dispatcher."""

HELPER = "direct_register_custom_op"


class LibraryOps:
    """Ops of one module that `torch.library.Library` defines, and the source that replaces each statement.

    Attributes:
        reasons: by definition, the name of the op, and why it stays as it is; empty if it is rewritten.
        comments: by statement with its first kernel, the comments of its definition.
    """

    def __init__(self, module: cst.Module, namespaces: Mapping[str, str], taken: Collection[str]) -> None:
        self.reasons: dict[cst.CSTNode, tuple[str, str]] = {}
        self.comments: dict[cst.CSTNode, list[cst.EmptyLine]] = {}
        self._taken = taken
        self._new: dict[cst.CSTNode, list[str]] = {}
        self._libraries = {**namespaces, **_libraries(module)}
        self._with_fake = {_qualified(call) for call in m.findall(module, FAKE) if isinstance(call, cst.Call)}
        self._implementations: dict[str, list[Implementation]] = {}
        self._definitions: dict[str, tuple[cst.CSTNode, str]] = {}
        for statement in module.body:
            if isinstance(statement, cst.FunctionDef):
                self._read_decorators(statement)
            elif (call := _call_of(statement)) is not None:
                self._read_call(statement, call)
        for op, (definition, schema) in self._definitions.items():
            self._note(definition, op, partial(self._definition, op, definition, schema))

    def _read_call(self, statement: cst.CSTNode, call: cst.Call) -> None:
        if last_name(call.func) == HELPER:
            self._note(statement, HELPER, partial(self._helper, statement, call))
        elif (name := _qualified(call)) and code(call.func).endswith("library.define"):
            is_plain = len(call.args) == 2 and call.args[1].keyword is None
            self._definitions[name] = statement, _text(call.args[1].value) if is_plain else ""
        elif name and code(call.func).endswith("library.impl") and len(call.args) == 3:
            row = statement, _key_of_type(call.args[1].value), code(call.args[2].value)
            self._implementations.setdefault(name, []).append(row)
        elif isinstance(call.func, cst.Attribute) and code(call.func.value) in self._libraries:
            namespace = self._libraries[code(call.func.value)]
            first = _text(call.args[0].value) if call.args else ""
            name, bracket, rest = first.partition("(")
            if call.func.attr.value == "define" and first:
                self._definitions[f"{namespace}::{name.strip()}"] = statement, bracket + rest
            elif call.func.attr.value == "impl" and first:
                row = statement, _key(call.args), code(call.args[1].value)
                self._implementations.setdefault(f"{namespace}::{first}", []).append(row)

    def _read_decorators(self, function: cst.FunctionDef) -> None:
        """Record the ops that `@torch.library.impl(lib, "add", "CPU")` makes a function the kernel of."""
        for one in function.decorators:
            call = one.decorator
            if not isinstance(call, cst.Call) or not code(call.func).endswith("library.impl") or len(call.args) < 2:
                return  # decorators above this one get what it returns, not the function
            namespace = self._libraries.get(code(call.args[0].value))
            if name := _qualified(call):
                row = one, _key_of_type(call.args[1].value), function.name.value
                self._implementations.setdefault(name, []).append(row)
            elif namespace is not None:
                row = one, _key(call.args), function.name.value
                self._implementations.setdefault(f"{namespace}::{_text(call.args[1].value)}", []).append(row)

    def statements(self, original: cst.CSTNode) -> list[str] | None:
        """Return the source that takes the place of a statement, or None if it stays."""
        return self._new.get(original)

    def _note(self, definition: cst.CSTNode, op: str, rewrite: Callable[[], None]) -> None:
        try:
            rewrite()
            self.reasons[definition] = op, ""
        except NotMechanical as reason:
            self.reasons[definition] = op, str(reason)

    def _definition(self, op: str, definition: cst.CSTNode, schema: str) -> None:
        """Record the source that replaces a definition and its kernels: all of them, or none."""
        rows = self._implementations.get(op, [])
        if not schema:
            raise NotMechanical("it is defined with other arguments than a name and a schema in quotes")
        if not rows:
            raise NotMechanical("no kernel is registered with impl() at the top of this file")
        name = op.partition("::")[2].partition(".")[0]
        name = f"{name.rstrip('_')}_op" if name in self._taken else name
        new: dict[cst.CSTNode, list[str]] = {definition: []}
        kernels = sorted(rows, key=lambda row: row[1] == "Meta")
        for position, (statement, key, function) in enumerate(rows):
            if key not in DEVICES and key != "Meta":
                raise NotMechanical(f"a kernel is registered for the dispatch key {key}")
            if statement is kernels[0][0] and (key == "Meta" or position):
                raise NotMechanical("the fake is registered before a kernel")
            if statement is kernels[0][0]:
                new[statement] = [f"{name} = {_declaration(op, function, schema, DEVICES[key])}"]
            elif key == "Meta":
                new[statement] = [f"{name}.register_fake({function})"]
            else:
                device = f'"{DEVICES[key]}"' if DEVICES[key] else "None"
                new[statement] = [f"{name}.register_kernel({device}, {function})"]
            if key == COMPOSITE and op not in self._with_fake and all(row[1] != "Meta" for row in rows):
                new[statement].append(f"{name}.register_fake({function})")  # such a kernel takes fake tensors, too
        self._new |= new
        self.comments[kernels[0][0]] = comments_of(definition)

    def _helper(self, statement: cst.CSTNode, call: cst.Call) -> None:
        names = ("op_name", "op_func", "mutates_args", "fake_impl")
        given = {one.keyword.value if one.keyword else names[index]: one.value for index, one in enumerate(call.args)}
        library = code(given["target_lib"]) if "target_lib" in given else HELPER
        op = _text(given["op_name"]) if "op_name" in given else ""
        if library not in self._libraries:
            raise NotMechanical("the library of the op is not in the files that were read")
        if not op or "op_func" not in given or not set(given) <= {*names, "target_lib", "dispatch_key", "tags"}:
            raise NotMechanical("it is called with other arguments than a name in quotes and a function")
        name = f"{op}_op" if op in self._taken else op
        options = [f"{one}={code(given[one])}" for one in ("mutates_args", "tags") if one in given]
        text = ", ".join([f'"{self._libraries[library]}::{op}"', code(given["op_func"]), *options])
        fake = [f"{name}.register_fake({code(given['fake_impl'])})"] if "fake_impl" in given else []
        self._new[statement] = [f"{name} = custom_op({text})", *fake]


def _declaration(op: str, function: str, schema: str, device: str | None) -> str:
    written = re.findall(r"Tensor(?:\?|\[\])?\(\w+!\)(?:\?|\[\])?\s+(\w+)", schema)
    options = [f"mutates_args={tuple_of(written)}"] if written else []
    options += [f'device_types="{device}"'] if device else []
    text = ", ".join([f'"{op}"', function, f'schema="{schema}"', *options])
    return f"custom_op({text})"


def namespace_of_helper(module: cst.Module) -> dict[str, str]:
    """Return the namespace that `direct_register_custom_op` defines ops in, if this module defines the helper."""
    found = list(_libraries(module).values())
    is_here = m.findall(module, m.FunctionDef(name=m.Name(HELPER)))
    return {HELPER: found[0]} if is_here and len(found) == 1 else {}


def _libraries(module: cst.Module) -> dict[str, str]:
    """Return the namespaces of the libraries in a module, by variable."""
    found = {}
    for statement in module.body:
        value = statement.body[0].value if m.matches(statement, ASSIGNED) else None  # type: ignore[union-attr, index]
        if isinstance(value, cst.Call) and last_name(value.func) == "Library" and len(value.args) > 1:
            namespace = _text(value.args[0].value)
            if namespace and _text(value.args[1].value) in ("DEF", "FRAGMENT"):
                found[code(statement.body[0].targets[0].target)] = namespace  # type: ignore[union-attr, index]
    return found


ASSIGNED = m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(m.Name())])])


FAKE = m.Call(
    func=m.OneOf(*(m.Attribute(attr=m.Name(name)) | m.Name(name) for name in ("register_fake", "impl_abstract")))
)


def _call_of(statement: cst.CSTNode) -> cst.Call | None:
    one = only_part(statement)
    return one.value if isinstance(one, cst.Expr) and isinstance(one.value, cst.Call) else None


def _key(arguments: Sequence[cst.Arg]) -> str:
    return (_text(arguments[2].value) if len(arguments) > 2 else "") or "CompositeImplicitAutograd"


def _key_of_type(node: cst.BaseExpression) -> str:
    """Return the dispatch key of what `torch.library.impl("ns::add", "cpu")` calls a type."""
    text = _text(node) or code(node)
    return COMPOSITE if text == "default" else text.upper() if text.upper() in DEVICES else text


def _qualified(call: cst.Call) -> str:
    """Return the first argument if it is the name of an op with its namespace, in quotes; else an empty string."""
    name = _text(call.args[0].value) if call.args else ""
    return name if "::" in name else ""


def _text(node: cst.BaseExpression) -> str:
    """Return the text of a literal; an empty string for any other expression."""
    value = node.evaluated_value if isinstance(node, (cst.SimpleString, cst.ConcatenatedString)) else ""
    return value if isinstance(value, str) else ""
