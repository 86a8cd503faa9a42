"""Writes Python source line by line, compiles it, and shows it to tracebacks and debuggers."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

INDENT = "    "
BUILTINS = ("all", "any", "bool", "float", "int", "len", "list", "str", "tuple", "type")
"""What generated source calls, or compares types with; a name of the op's is never called there."""


class Source:
    """Lines of Python that are being written.

    A name that the generator uses for itself is written `$name`: where the op has an argument of that name, it gets an
    underscore.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = frozenset(taken)
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str = "") -> None:
        """Adds one line at the current depth."""
        self._lines.append(f"{INDENT * self._depth}{text}" if text else "")

    def lines(self, *texts: str) -> None:
        """Adds several lines at the current depth."""
        for text in texts:
            self.line(text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Adds a line that ends in a colon, and indents what is written while the context is open."""
        self.line(f"{head}:")
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    @property
    def text(self) -> str:
        """All that was written; where the op has the name of a builtin, the builtin is imported under another."""
        text = re.sub(r"\$(\w+)", lambda match: self.own(match[1]), "\n".join(self._lines)) + "\n"
        shadowed = [name for name in BUILTINS if name in self._taken]
        for name in shadowed:
            text = re.sub(rf"(?<!class )(?<!def )(?<![\w.]){name}(?=\()|(?<= is ){name}\b", self.own(name), text)
        imports = [
            f"from builtins import {name} as {self.own(name)}" for name in shadowed if f"{self.own(name)}" in text
        ]
        return "".join(f"{line}\n" for line in imports) + text

    def own(self, name: str) -> str:
        """What a name of the generator's is called in this source."""
        while name in self._taken:
            name += "_"
        return name


def compile_source(text: str, name: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Runs generated source in a namespace, under a file name that tracebacks and pdb can show.

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
    """Source for a tuple of expressions: `()`, `(a,)`, `(a, b)`."""
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"
