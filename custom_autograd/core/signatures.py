"""The signature of whatever can be called, the names that its code uses, and whether it is defined again."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

# From Python 3.14 on, annotations are evaluated when they are read, which fails where a name is only there for type
# checkers, or not yet. Most functions are asked for their parameters alone: such a name then stands as a ForwardRef.
if sys.version_info >= (3, 14):
    import annotationlib

    def read_signature(function: Callable[..., Any], *, follow_wrapped: bool = True) -> inspect.Signature:
        """Return what `inspect.signature` does, where the annotations cannot be evaluated, too."""
        how = annotationlib.Format.FORWARDREF
        return inspect.signature(function, follow_wrapped=follow_wrapped, annotation_format=how)

    def read_annotations(annotated: Callable[..., Any]) -> dict[str, Any]:  # Any: an annotation can be any object
        """Return the annotations of a function or a class itself, as it has them."""
        return annotationlib.get_annotations(annotated, format=annotationlib.Format.FORWARDREF)

    def annotations_as_text(function: Callable[..., Any]) -> dict[str, str]:
        """Return the annotations as they are written, where Python knows that."""
        return annotationlib.get_annotations(function, format=annotationlib.Format.STRING)

else:
    read_signature = inspect.signature

    def read_annotations(annotated: Callable[..., Any]) -> dict[str, Any]:  # Any: an annotation can be any object
        """Return the annotations of a function or a class itself, as it has them."""
        return inspect.get_annotations(annotated)

    def annotations_as_text(function: Callable[..., Any]) -> dict[str, str]:
        """Return the annotations as they are written, where Python knows that."""
        del function
        return {}


def find_signature(function: Callable[..., Any]) -> inspect.Signature | None:  # Any: whatever a user registers
    """Return what a call may pass. What a partial has bound is not a parameter.

    Returns:
        None for what does not say: some builtins, and functions of another language.
    """
    if hasattr(function, "written_in"):  # its text is read once
        return getattr(function, "__signature__", None)
    try:
        signature = read_signature(function)
    except (TypeError, ValueError):
        return None
    bound = _bound_by_keyword(function)
    if not bound:
        return signature
    rest = [parameter for parameter in signature.parameters.values() if parameter.name not in bound]
    return signature.replace(parameters=rest)


def signature_of_code(function: Callable[..., Any]) -> inspect.Signature | None:  # Any: as above
    """Return what a call may pass to the code itself: `functools.wraps` and `__signature__` may say something else."""
    if not isinstance(function, FunctionType) or not vars(function):
        return find_signature(function)
    code = FunctionType(function.__code__, {}, None, function.__defaults__, function.__closure__)
    code.__kwdefaults__, code.__annotations__ = function.__kwdefaults__, read_annotations(function)
    return read_signature(code)


class AnnotationsOfWrapped:
    """The attribute `__annotations__` of an object that wraps a function, for Python 3.14 and newer.

    There `functools.update_wrapper` sets `__annotate__` alone.
    """

    def __get__(self, wrapper: Any, cls: type | None = None) -> dict[str, Any]:  # Any: annotations, and what has them
        """Return those of the function, which are evaluated now; none of the class itself."""
        annotations: dict[str, Any] = {} if wrapper is None else wrapper.__wrapped__.__annotations__
        return annotations


def plain_parameters(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the names of the parameters of a plain function: most rules are, and a signature takes 20 times as long.

    Returns:
        None if a parameter has a default or can be given in one way only, and for what is more than a function.
    """
    if type(function) is not FunctionType or vars(function) or function.__defaults__:
        return None
    code = function.__code__
    has_others = code.co_kwonlyargcount or code.co_posonlyargcount or code.co_flags & VARIADIC
    return None if has_others else code.co_varnames[: code.co_argcount]


def find_misfit(signature: inspect.Signature, expected: Sequence[str], keywords: Sequence[str]) -> str | None:
    """Return why a function does not accept a call, as its author sees it: in its parameters, not in the call.

    Returns:
        None if it accepts the call.
    """
    parameters = signature.parameters.values()
    kinds = {parameter.kind for parameter in parameters}
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    starred = [name for name in expected if name.startswith("*")]
    filled = positional[: len(expected) - len(starred)]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        if starred:
            return f"it has no parameter like '{starred[0]}'"
        if len(expected) > len(positional):
            return f"it takes {len(positional)} of {len(expected)} positional arguments"
    for name in keywords:
        if name in (positional if starred else filled):
            return f"its parameter '{name}' is not keyword-only, and a positional argument takes its place"
        by_name = signature.parameters.get(name)
        if (by_name is None or by_name.kind in BY_POSITION) and inspect.Parameter.VAR_KEYWORD not in kinds:
            return f"it does not take the keyword argument '{name}'"
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in STARRED]
    missing = [name for name in required if name not in (*filled, *keywords)]
    return f"nothing is passed for its parameter '{missing[0]}'" if missing else None


VARIADIC = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _bound_by_keyword(function: Callable[..., Any]) -> set[str]:
    """Return the names of the arguments that `functools.partial` gives; nested partials are one."""
    return set(function.keywords) if isinstance(function, functools.partial) else set()


def names_in(code: CodeType | None) -> frozenset[str]:
    """Return the names of globals and attributes that code uses, with the functions within it; none for None."""
    if code is None:
        return frozenset()
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(code.co_names).union(*inner)


def is_filled(cell: CellType) -> bool:
    """Return True if a variable of a closure has a value by now."""
    try:
        cell.cell_contents  # noqa: B018 - reading is the question
    except ValueError:
        return False
    return True


def returns_nothing(function: object) -> bool:
    """Return True if a function surely has no `return` with a value: then None that it returned was forgotten."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))  # type: ignore[arg-type]  # it raises for others
    except (OSError, TypeError, SyntaxError):  # it has no source, or is part of a line
        return False
    is_function = isinstance(tree.body[0], ast.FunctionDef)
    return is_function and not any(isinstance(node, ast.Return) and node.value for node in ast.walk(tree))


def find_delay(function: Callable[..., Any]) -> str | None:  # Any: whatever users register
    """Return what a call returns before any of the code has run: a coroutine or a generator; None if it runs."""
    while isinstance(function, functools.partial):
        function = function.func
    called = function if isinstance(function, (FunctionType, MethodType)) else type(function).__call__
    flags = getattr(getattr(called, "__code__", None), "co_flags", 0)
    return next((name for flag, name in DELAYS.items() if flags & flag), None)


GENERATOR = "a generator"
DELAYS = {
    inspect.CO_COROUTINE: "a coroutine",
    inspect.CO_ASYNC_GENERATOR: "an asynchronous generator",
    inspect.CO_GENERATOR: GENERATOR,
}
"""What a call returns if the function runs later, by the flag of its code."""
WITHOUT_DELAY = "return the results themselves; what awaits or collects them can be called within the function"

ANONYMOUS = ("_", "<lambda>")


def is_redefinition(old: Callable[..., Any], new: Callable[..., Any]) -> bool:  # Any: whatever users register
    """Return True if Python would let one function replace the other: same module and qualified name.

    Functions named `_` and lambdas are also compared by location. Two of them in one file are two functions; on a line,
    or in two files of one module (which is what the cells of a notebook are), they are one that is defined again.
    """
    return _name_of(old) == _name_of(new) and is_redeclaration(old, new)


def is_redeclaration(old: Callable[..., Any], new: Callable[..., Any]) -> bool:  # Any: as above
    """Return True if a module declares an op again with a function of the same name, perhaps within another function.

    That is how torchao, for one, exchanges an op of its own. Functions named `_` and lambdas as in `is_redefinition`.
    """
    if old is new:
        return True
    before, after = _code_of(old), _code_of(new)
    if before is None or after is None:
        return False
    if (module_of(old), before.co_name) != (module_of(new), after.co_name):
        return False
    is_other_file = before.co_filename != after.co_filename
    return before.co_name not in ANONYMOUS or is_other_file or _location(before) == _location(after)


def is_other_closure(old: Callable[..., Any], new: Callable[..., Any]) -> bool:  # Any: as above
    """Return True if one definition ran twice, around other values: a factory made two functions."""
    before, after = inspect.unwrap(old), inspect.unwrap(new)
    if _code_of(old) is not _code_of(new):
        return False
    return _captured(before) != _captured(after)


def _captured(function: Callable[..., Any]) -> tuple[object, ...]:  # Any: as above
    """Return what distinguishes two functions of one definition: by identity, since values may be tensors."""
    cells = getattr(function, "__closure__", None) or ()
    defaults = getattr(function, "__defaults__", None) or ()
    keywords = getattr(function, "__kwdefaults__", None) or {}
    held = [cell.cell_contents for cell in cells if cell != CellType()]
    return tuple(map(id, [*held, *defaults, *keywords.values()]))


def is_imported_twice(old: Callable[..., Any], new: Callable[..., Any]) -> bool:  # Any: as above
    """Return True if both come from one line of one file, which is imported under two names."""
    before, after = _code_of(old), _code_of(new)
    if before is None or after is None or _name_of(old)[0] == _name_of(new)[0]:
        return False
    return _location(before) == _location(after) and before.co_name == after.co_name


def module_of(function: Callable[..., Any]) -> str:  # Any: as above
    """Return the name of the module that a function was defined in."""
    return _name_of(function)[0]


def _code_of(function: Callable[..., Any]) -> CodeType | None:  # Any: as above
    """Return the code of a Python function behind its decorators; None for other callables, which have no location."""
    plain = inspect.unwrap(function)
    return plain.__code__ if inspect.isfunction(plain) else None


def _name_of(function: Callable[..., Any]) -> tuple[str, str]:  # Any: as above
    plain = inspect.unwrap(function)
    return str(getattr(plain, "__module__", "")), str(getattr(plain, "__qualname__", ""))


def _location(code: CodeType) -> tuple[str, int]:
    return os.path.abspath(code.co_filename), code.co_firstlineno
