"""Writes Python source line by line, compiles it, and shows it to tracebacks and debuggers."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

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
        """Return the spelling of a name of the generator's in this source.

        Args:
            name: as it is written, without the first `$`.
        """
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


def compile_source(text: str, name: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Run generated source in a namespace, under a file name that tracebacks and pdb can show.

    Args:
        text: the source.
        name: what it was generated for; becomes part of the file name.
        namespace: what the source may use; what it defines is added to it.

    Returns:
        The namespace.
    """
    # NOTE: no __name__ in the namespace: Dynamo would import the module of that name to guard its globals.
    file_name = f"<custom_autograd {name}>"
    linecache.cache[file_name] = (len(text), None, text.splitlines(keepends=True), file_name)
    exec(compile(text, file_name, "exec"), namespace)
    return namespace


def tuple_of(names: list[str]) -> str:
    """Return source for a tuple of expressions: `()`, `(a,)`, `(a, b)`."""
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def literal(value: Any) -> str:  # Any: what has a literal in Python
    """Return source of a value; a text in it holds no `$`, which would be taken for a name of the generator's."""
    return repr(value).replace("$", r"\x24")
