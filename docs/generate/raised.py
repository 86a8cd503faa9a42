"""Find every message that the package can raise in its source: the text, with names in braces for values.

A message begins as the argument `problem` of an exception or of `Origin.error`, or as the text of an exception. If a
function makes it from one of its parameters, each call of that function is a message; `_follow` yields those.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from generate.source import Source, name_of

ERRORS = ("DeclarationError", "RegistrationError", "KernelError", "GradientError", "CheckError", "CustomAutogradError")
OTHERS = {
    "GradientUnavailable": "GradientUnavailable",
    "KernelUnavailable": "KernelUnavailable",
    "FakeUnavailable": "FakeUnavailable",
    "VmapUnavailable": "VmapUnavailable",
    "UnknownNameError": "UnknownNameError",
    "MisfitError": "KernelError",
}
"""Exceptions that derive from those above, and one that is converted to one of them."""

OWN = tuple(name for name in OTHERS if name != "MisfitError")
"""Those that take an op and a problem."""

BUILT_IN = ("AttributeError", "NotImplementedError", "TypeError", "ValueError")
"""Exceptions of Python, raised if a caller expects them."""

SKIPS = "NothingToCheckError"
"""The exception of a check that does not apply: its text is the reason of the skip."""

GIVEN = ("option_types.py", "refuse", ("CheckError", "DeclarationError", "RegistrationError"))
"""A file, the parameter of its functions that makes an exception, and the classes that callers have it make."""

FACTS = ("expected", "do")
SHOWING = ("quote", "show", "repr", "str", "sorted", "list", "len", "first_line", "map", "join")
DEPTH = 5

BY_CLASS = "error"
"""The method of `Origin` that makes an exception of a given class."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message: its class, its text, its other facts, and the file that raises it."""

    error: str
    text: str
    facts: tuple[tuple[str, str], ...]
    path: Path
    line: int


@functools.cache  # two tests and the page ask for those of the package
def messages(package: Path) -> list[Message]:
    """Return every message of a package, in the order of its files."""
    source = Source()
    for path in sorted(package.rglob("*.py")):
        if "mutants" not in path.parts:
            source.add(path)
    found: dict[tuple[str, str], Message] = {}
    for name in (*ERRORS, *OTHERS, *BUILT_IN, SKIPS, BY_CLASS):
        for call in source.calls.get(name, []):
            is_raised = name not in BUILT_IN or isinstance(source.parents[call], ast.Raise)
            problem = _problem(call)
            if is_raised and problem is not None:
                _collect(found, source, call, problem, _facts(source, call))
    _collect_bound(found, source)
    file, name, errors = GIVEN
    for call in source.calls.get(name, []):
        if source.path_of(call).name == file and call.args:
            for text, place, own in _follow(source, call, call.args[0], _facts(source, call), 0):
                for error in errors:
                    found[error, text] = Message(error, text, own, source.path_of(place), place.lineno)
    rows = [_with_constants(row, source.constants) for row in found.values()]
    return sorted(rows, key=lambda row: (row.path, row.line))


def _collect_bound(found: dict[tuple[str, str], Message], source: Source) -> None:
    """Add the messages of what is made by `partial(origin.error, SomeError)`."""
    for (path, name), error in source.bound.items():
        for call in [one for one in source.calls.get(name, []) if source.path_of(one) == path and one.args]:
            for text, place, own in _follow(source, call, call.args[0], _facts(source, call), DEPTH):
                if error in ERRORS and _says_something(text):
                    row = Message(error, text, own, source.path_of(place), place.lineno)
                    found.setdefault((error, text), row)


def _with_constants(row: Message, constants: dict[str, str]) -> Message:
    """Replace the names of constants in a message by their text."""

    def filled(text: str) -> str:
        return re.sub(r"\{(_?[A-Z][A-Z_]*)\}", lambda found: constants.get(found[1], found[0]), text)

    return replace(row, text=filled(row.text), facts=tuple((name, filled(text)) for name, text in row.facts))


def _collect(
    found: dict[tuple[str, str], Message],
    source: Source,
    call: ast.Call,
    problem: ast.expr,
    facts: tuple[tuple[str, str], ...],
) -> None:
    for text, place, own in _follow(source, call, problem, facts, DEPTH):
        around = (_errors(source, node, depth) for depth in (0, DEPTH) for node in (call, place))
        for error in next((errors for errors in around if errors), []):
            if _says_something(text):
                row = Message(OTHERS.get(error, error), text, own, source.path_of(place), place.lineno)
                found.setdefault((row.error, text), row)


def _follow(
    source: Source, call: ast.Call, problem: ast.expr, facts: tuple[tuple[str, str], ...], depth: int
) -> Iterator[tuple[str, ast.Call, tuple[tuple[str, str], ...]]]:
    """Yield each text that an expression can be, the call that contains it, and the facts of that call."""
    function = source.function_of(call)
    for text in _texts(problem, function):
        given = _parameter_in(text, function)
        callers = source.callers_of(function) if given and function else []
        if function is None or not callers or not depth:
            yield text, call, facts
            continue
        names = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
        place = names.index(given) - (names[0] in ("self", "cls"))
        for caller in callers:
            value = _argument(caller, place, given)
            if value is not None:
                for inner, where, own in _follow(source, caller, value, _facts(source, caller) or facts, depth - 1):
                    yield text.replace("{" + given + "}", inner), where, own


def _errors(source: Source, node: ast.AST, depth: int) -> list[str]:
    """Return the classes with which the text of a node is raised: the exception around it, or those of its callers."""
    for above in source.above(node) if not _class_of(node) else [node]:
        if _class_of(above):
            return [_class_of(above)]
        if isinstance(above, ast.Assign):
            named = _raised_later(source, above.targets[0])
            if named:
                return named
        if isinstance(above, ast.FunctionDef):
            callers = source.callers_of(above) if depth else []
            return list(dict.fromkeys(error for caller in callers for error in _errors(source, caller, depth - 1)))
    return []


def _raised_later(source: Source, kept: ast.expr) -> list[str]:
    """Return the exceptions whose text was assigned to a name of the function, or to an attribute."""
    found = {}
    for name in (*ERRORS, *OTHERS):
        for call in source.calls.get(name, []):
            first = call.args[0] if call.args else call
            is_same = type(first) is type(kept) and name_of(first) == name_of(kept) != ""
            is_here = isinstance(kept, ast.Attribute) or source.function_of(call) is source.function_of(kept)
            if is_same and is_here:
                found[name] = True
    return list(found)


def _texts(node: ast.expr | None, function: ast.FunctionDef | None, depth: int = DEPTH) -> list[str]:
    """Return every text that an expression can be, with names in braces for values."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        return _joined([_texts(part, function, depth) for part in node.values])
    if isinstance(node, ast.FormattedValue):
        return _texts(node.value, function, depth - 1) if _is_text(node.value, function) else [_shown(node.value)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _joined([_texts(node.left, function, depth), _texts(node.right, function, depth)])
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body, function, depth), *_texts(node.orelse, function, depth)]
    if isinstance(node, ast.BoolOp):
        return [text for value in node.values for text in _texts(value, function, depth)]
    if isinstance(node, ast.Name) and depth and _assigned(node.id, function):
        return [text for value in _assigned(node.id, function) for text in _texts(value, function, depth - 1)]
    return [] if node is None else [_shown(node)]


def _is_text(node: ast.expr, function: ast.FunctionDef | None) -> bool:
    """Return True if an expression inside an f-string is a text with alternatives and not a value."""
    if isinstance(node, ast.IfExp):
        return True
    values = _assigned(node.id, function) if isinstance(node, ast.Name) else []
    return bool(values) and all(isinstance(value, ast.JoinedStr | ast.Constant | ast.IfExp) for value in values)


def _joined(parts: list[list[str]]) -> list[str]:
    texts = [""]
    for part in parts:
        texts = [text + more for text in texts for more in part or ["{...}"]]
    return texts


def _assigned(name: str, function: ast.FunctionDef | None) -> list[ast.expr]:
    """Return the values that are assigned to a local name."""
    if function is None:
        return []
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.Assign) and len(node.targets) == 1]
    return [node.value for node in nodes if isinstance(node.targets[0], ast.Name) and node.targets[0].id == name]


def _shown(node: ast.expr) -> str:
    """Return the name in braces for a value."""
    while True:
        if isinstance(node, ast.Call) and name_of(node.func) in SHOWING and node.args:
            node = node.args[-1]
        elif isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Subscript | ast.Starred):
            node = node.value
        elif isinstance(node, ast.GeneratorExp | ast.ListComp):
            node = node.elt
        else:
            break
    name = name_of(node)
    return "{" + (name or "...") + "}"


def _argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    by_name = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    if by_name is not None:
        return by_name
    return call.args[place] if 0 <= place < len(call.args) else None


def _facts(source: Source, call: ast.Call) -> tuple[tuple[str, str], ...]:
    """Return the `expected` and `do` facts of a call; `found` is a value."""
    function = source.function_of(call)
    found = []
    for keyword in call.keywords:
        texts = _texts(keyword.value, function) if keyword.arg in FACTS else []
        said = [text for text in dict.fromkeys(texts) if _says_something(text) and text != "None"]
        if said:
            found.append((keyword.arg or "", ", or: ".join(said)))
    return tuple(found)


def _parameter_in(text: str, function: ast.FunctionDef | None) -> str:
    """Return the parameter of the function that a text contains, or an empty string."""
    if function is None:
        return ""
    names = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
    return next((name for name in names if "{" + name + "}" in text and name in TEXTS), "")


def _problem(call: ast.Call) -> ast.expr | None:
    """Return the problem passed to an exception, or its whole text; None if another call makes the text."""
    error = _class_of(call)
    is_any = isinstance(call.func, ast.Name) and call.func.id == BY_CLASS  # the class is a parameter
    if error not in (*ERRORS, *OWN) and not is_any:
        return None if not error or not call.args or _makes_message(call.args[0]) else call.args[0]
    problem = _argument(call, 1, "problem")
    if problem is None and call.args and not _makes_message(call.args[0]):
        return call.args[0]
    return problem


def _class_of(node: ast.AST) -> str:
    """Return the name of the class of the exception that a call makes, or an empty string."""
    if not isinstance(node, ast.Call):
        return ""
    names = [name_of(node.func), *(name_of(argument) for argument in node.args[:1])]  # Origin.error takes the class
    return next((name for name in names if name in (*ERRORS, *OTHERS, *BUILT_IN, SKIPS)), "")


def _makes_message(node: ast.expr) -> bool:
    """Return True if another function makes the text of an exception; `_follow` reads it."""
    return isinstance(node, ast.Call) or name_of(node) == "message"


def _says_something(text: str) -> bool:
    """Return True if a text has words besides the names of values."""
    outside = "".join(part.partition("}")[2] if index else part for index, part in enumerate(text.split("{")))
    return any(character.isalpha() for character in outside)


TEXTS = ("problem", "reason", "refusal", "message", "what", "why")
"""The names of parameters for a part of a message that is a sentence and not a value."""
