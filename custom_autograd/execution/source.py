"""Writes Python source line by line and compiles it; the parameters of an op, and the arguments of its calls."""

from __future__ import annotations

import linecache
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter
from typing import Any, NoReturn

from torch.fx import Proxy

from custom_autograd.core.errors import KernelError
from custom_autograd.registration.declaration import Declaration
from custom_autograd.schema.conversions import GENERATOR_IN_GRAPH, WRAP
from custom_autograd.schema.schema import Argument, Schema
from custom_autograd.torch_private.compiler import constant_in_graphs, raise_text

INDENT = "    "
BUILTINS = (
    *("Exception", "all", "classmethod", "dict", "float", "hasattr", "bool", "complex", "int", "len", "list", "set"),
    *("staticmethod", "str", "tuple", "type"),
)
"""What generated source takes from Python, written `$name` as every other name of the generator's."""

NAME = re.compile(r"\$(\w+(?:\$\w+)*)")
"""A name of the generator's: `$result`, or `$needs$x` for what it derives from the op's own `x`."""


class Source:
    """Lines of Python that are being written.

    The names of the op's arguments and outputs stand for themselves. Every other name is written `$name`, or
    `$role$name` where it is derived from one of those, and is given a spelling that nothing else has: that of the name
    itself, with underscores behind it where the op, or another name of the generator's, has that already.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._own: dict[str, str] = {}
        self._lines: list[str] = []
        self._depth = 0

    @classmethod
    def of(cls, declaration: Declaration, *more: str) -> Source:
        """Return a source that leaves the names of an op, and further ones, to the op."""
        schema = declaration.schema
        return cls({declaration.name.name, *schema.argument_names, *schema.output_names, *more})

    def line(self, text: str = "") -> None:
        """Add one line at the current depth."""
        self._lines.append(f"{INDENT * self._depth}{text}" if text else "")

    def lines(self, *texts: str) -> None:
        """Add several lines at the current depth."""
        for text in texts:
            self.line(text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add a line that ends in a colon, and indent what is written while the context is open."""
        self.line(f"{head}:")
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    @property
    def text(self) -> str:
        """Return all that was written; a builtin that has to go by another name is imported under it."""
        text = NAME.sub(lambda match: self.own(match[1]), "\n".join(self._lines)) + "\n"
        renamed = [name for name in BUILTINS if self._own.get(name, name) != name]
        return "".join(f"from builtins import {name} as {self.own(name)}\n" for name in renamed) + text

    def own(self, name: str) -> str:
        """Return the spelling of a name of the generator's in this source."""
        if name not in self._own:
            spelling = name.replace("$", "_")
            while spelling in self._taken:
                spelling += "_"
            self._own[name] = spelling
            self._taken.add(spelling)
        return self._own[name]

    def namespace(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values of any kind (Any) under the spellings of their names in this source."""
        return {self.own(name): value for name, value in values.items()}

    def compiled(self, title: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Run the source with values of any kind (Any), and return all of its names but the op's own, with values."""
        namespace = compile_source(self.text, title, self.namespace(values))
        return {name: namespace[own] for name, own in self._own.items() if own in namespace}


def compile_source(text: str, name: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Run generated source in a namespace, under a file name that tracebacks and pdb can show.

    Returns:
        The namespace.
    """
    # NOTE: no __name__ in the namespace: Dynamo would import the module of that name to guard its globals.
    file_name = f"<custom_autograd {name}>"
    linecache.cache[file_name] = (len(text), None, text.splitlines(keepends=True), file_name)
    exec(compile(text, file_name, "exec"), namespace)
    return namespace


def named(*functions: Callable[..., Any]) -> dict[str, Any]:  # Any: of any signature
    """Return functions and classes by their names, by which generated source calls them."""
    return {function.__name__: function for function in functions}


def tuple_of(names: list[str]) -> str:
    """Return source for a tuple of expressions: `()`, `(a,)`, `(a, b)`."""
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def dict_of(names: Iterable[str], value: str = "{}") -> str:
    """Return source for a dict by name: of the variable of that name, or of another expression with it."""
    return "{" + ", ".join(f'"{name}": {value.format(name)}' for name in names) + "}"


def literal(value: Any) -> str:  # Any: what has a literal in Python
    """Return source of a value; a text in it holds no `$`, which would be taken for a name of the generator's."""
    return repr(value).replace("$", r"\x24")


def signature(
    schema: Schema, *, first: str = "", rest: str = "", for_dispatcher: bool, in_body: Collection[str] = ()
) -> str:
    """Return source of a parameter list, with defaults, but for those that `write_defaults` writes."""
    parts, has_star = [first] if first else [], False
    for argument in schema.arguments:
        is_variadic = argument.is_variadic and not for_dispatcher
        if argument.is_keyword_only and not has_star:
            parts.append(f"*{rest}")
        has_star |= argument.is_keyword_only or is_variadic
        default = default_of(argument, for_dispatcher=for_dispatcher)[0] if argument.has_default else ""
        if argument.name in in_body:
            default = "$absent"
        if argument.is_variadic and for_dispatcher:
            default = "()"  # the dispatcher always gives it; Python wants a default behind others
        parts.append(f"{'*' * is_variadic}{argument.name}{'=' * bool(default)}{default}")
    if rest and not has_star:
        parts.append(f"*{rest}")
    nameless = bool(first) + sum(argument.is_positional_only for argument in schema.arguments)
    if nameless and not for_dispatcher:
        parts.insert(nameless, "/")
    return ", ".join(parts)


def parameters_of(schema: Schema) -> str:
    """Return source of the parameters of a function that takes what a kernel takes, without defaults."""
    has_star = any(argument.is_variadic for argument in schema.arguments)
    positional = [f"{'*' * one.is_variadic}{one.name}" for one in schema.arguments if not one.is_keyword_only]
    keywords = [argument.name for argument in schema.arguments if argument.is_keyword_only]
    return ", ".join([*positional, *(["*"] if keywords and not has_star else []), *keywords])


def by_position(schema: Schema) -> list[str]:
    """Return source of parameters that take all arguments by position, with the dispatcher's defaults at the end."""
    parameters: list[str] = []
    is_tail = True
    for argument in reversed(schema.arguments):
        is_tail = is_tail and argument.has_default
        default = f"={default_of(argument, for_dispatcher=True)[0]}" if is_tail else ""
        parameters.append(argument.name + default)
    return parameters[::-1]


def default_of(argument: Argument, *, for_dispatcher: bool) -> tuple[str, Any]:
    """Return source of a default, and the value of the name in that source (Any: a default of any type)."""
    value = argument.default
    if for_dispatcher and argument.to_dispatcher is not None:
        value = argument.to_dispatcher(value)
    if argument.type in ("float", "float?") and type(value) is int:
        value = float(value)
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return literal(value), value
    return f"${'dispatcher_default' if for_dispatcher else 'default'}${argument.name}", value


class Absent:
    """The default in a signature of a parameter whose own default is written in the body."""


def defaults_in_body(values: Mapping[str, Any]) -> dict[str, str]:
    """Return source of those defaults, by name, of which Dynamo makes inputs of a graph if a signature has them.

    Shapes are dynamic then, and the defaults hold floats. (Any: defaults of any type.)
    """
    found = {}
    for name, value in values.items():
        numbers = value if type(value) in (tuple, list) else (value,)
        are_plain = all(type(one) is int or (type(one) is float and math.isfinite(one)) for one in numbers)
        if are_plain and float in map(type, numbers):
            found[name] = literal(value)
    return found


def flat_defaults_in_body(schema: Schema) -> dict[str, str]:
    """Return the same of the arguments of a schema."""
    given = [argument for argument in schema.arguments if argument.has_default]
    return defaults_in_body({argument.name: default_of(argument, for_dispatcher=False)[1] for argument in given})


def write_defaults(source: Source, in_body: Mapping[str, str]) -> None:
    """Write defaults in the body of a function, where they are constants for Dynamo."""
    for name, default in in_body.items():
        with source.block(f"if {name} is $absent"):
            source.line(f"{name} = {default}")


def defaults(schema: Schema) -> dict[str, Any]:
    """Return the values of the names of defaults in generated source (Any: defaults of any type)."""
    found = {}
    for argument in schema.arguments:
        if argument.has_default:
            for for_dispatcher in (False, True):
                name, value = default_of(argument, for_dispatcher=for_dispatcher)
                found[name] = value
    return {name.removeprefix("$"): value for name, value in found.items() if name.startswith("$")}


def conversions(declaration: Declaration) -> dict[str, Any]:
    """Return the converters that generated source names after arguments (Any: functions of one value)."""
    names: dict[str, Any] = {}
    for argument in declaration.schema.arguments:
        if argument.to_dispatcher is not None:
            names[f"to_dispatcher${argument.name}"] = _checked(declaration, argument, argument.to_dispatcher)
        names[f"from_dispatcher${argument.name}"] = argument.from_dispatcher
    return names


def values_of(declaration: Declaration) -> dict[str, Any]:
    """Return defaults and conversions that generated source names after arguments (Any: of any type)."""
    return {**defaults(declaration.schema), **conversions(declaration)}


def _checked(declaration: Declaration, argument: Argument, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a conversion whose refusal names the op and the argument (Any: one value)."""

    @constant_in_graphs  # Dynamo cannot trace how a message is laid out
    def refusal(reason: str, advice: str) -> str:
        do = None if reason.startswith(GENERATOR_IN_GRAPH) else advice
        return str(declaration.error(KernelError, f"argument '{argument.name}': {reason}", do=do))

    def convert_or_refuse(value: Any) -> Any:
        try:
            return convert(value)
        except ValueError as error:
            reason = str(error)
        advice = WRAP if isinstance(value, Proxy) else f"pass {argument.example}, for example"
        return raise_text(KernelError, refusal(reason, advice))  # not from None: Dynamo of torch 2.11 cannot trace that

    return convert_or_refuse


def write_conversions(source: Source, schema: Schema) -> None:
    """Write the conversion of each argument that the dispatcher cannot hold."""
    for argument in schema.arguments:
        if argument.to_dispatcher is not None:
            source.line(f"{argument.name} = $to_dispatcher${argument.name}({argument.name})")


def pass_on(schema: Schema, *, to_user: bool = False) -> str:
    """Return source that hands all arguments on, keyword-only ones by keyword."""
    values = {a.name: f"{'*' * (to_user and a.is_variadic)}{a.name}" for a in schema.arguments}
    return arguments_of(schema, values)


def call_kernel(schema: Schema, *, is_from_dispatcher: bool = False) -> str:
    """Return source of a call of `$function` with what the dispatcher hands a kernel."""
    values = {a.name: _for_kernel(a, is_from_dispatcher=is_from_dispatcher) for a in schema.arguments}
    return f"$function({arguments_of(schema, values)})"


def arguments_of(schema: Schema, values: Mapping[str, str]) -> str:
    """Return source of the arguments of a call, from the source of each: keyword-only ones by keyword."""
    positional = [values[a.name] for a in schema.arguments if not a.is_keyword_only]
    keywords = [f"{a.name}={values[a.name]}" for a in schema.arguments if a.is_keyword_only]
    return ", ".join([*positional, *keywords])


def _for_kernel(argument: Argument, *, is_from_dispatcher: bool) -> str:
    if argument.is_variadic:
        has_conversion = argument.from_dispatcher is not None
        return f"*$from_dispatcher${argument.name}({argument.name})" if has_conversion else f"*{argument.name}"
    is_own = is_from_dispatcher and not has_list_by_default(argument)
    if argument.from_dispatcher is None and (is_own or not _is_list(argument)):
        return argument.name
    return _copied(argument) if argument.from_dispatcher is None else in_users_form(argument)


def in_users_form(argument: Argument) -> str:
    """Return source of an argument as kernels and rules see it.

    A list of numbers is a copy, which nothing else changes.
    """
    if argument.from_dispatcher is not None:
        return f"$from_dispatcher${argument.name}({argument.name})"
    return _copied(argument) if _is_list(argument) and not argument.holds_tensors else argument.name


def has_list_by_default(argument: Argument) -> bool:
    """Return True if its default is a list; the dispatcher leaves it out, since all calls would share the list."""
    return argument.has_default and isinstance(argument.default, list)


def _is_list(argument: Argument) -> bool:
    return argument.type.removesuffix("?").endswith("[]")


def _copied(argument: Argument) -> str:
    copied = f"$list({argument.name})"  # a list of its own, as from the dispatcher
    return f"None if {argument.name} is None else {copied}" if argument.is_optional else copied


POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def refuse_more(name: str, parameters: Iterable[tuple[Any, bool]]) -> Callable[[Sequence[Any]], NoReturn]:
    """Return what raises TypeError for further positional arguments."""
    with_default = [has_default for kind, has_default in parameters if kind in POSITIONAL]
    most, least = len(with_default), with_default.count(False)

    def refuse(more: Sequence[Any]) -> NoReturn:  # Any: whatever was given
        count = f"from {least} to {most}" if least < most else str(most)
        plural = "" if most == 1 and least == most else "s"
        given = most + len(more)
        raise TypeError(f"{name}() takes {count} positional argument{plural} but {given} were given")

    return refuse
