"""The schema with which a C++ source registers a function, read from its text: nothing is built."""

from __future__ import annotations

import re
from pathlib import Path

LITERAL_OR_COMMENT = re.compile(
    r'R"(?P<delimiter>[^()\\\s]{0,16})\((?P<raw>.*?)\)(?P=delimiter)"'
    r'|"(?P<text>(?:[^"\\\n]|\\.)*)"'
    r"|'(?:[^'\\\n]|\\.)'|//[^\n]*|/\*.*?\*/",
    re.DOTALL,
)
REGISTRATION = re.compile(r'\bdef\s*\(\s*((?:"\d+"\s*)+)')
"""`m.def("schema" ...`, where a number stands for what each literal holds."""


def find_definition(source: Path, function: str) -> str | None:
    """Return the schema of a function without its name, `(Tensor x) -> Tensor`; None if the text does not show it.

    Args:
        source: the C++ file, which calls `m.def` with string literals.
        function: the name under which it registers the function.

    Raises:
        OSError: the file cannot be read.
    """
    return definitions_in(source).get(function)


def definitions_in(source: Path) -> dict[str, str]:
    """Return the schemas that the text of a source shows, by function; arguments and errors as above."""
    literals: list[str] = []

    def numbered(token: re.Match[str]) -> str:
        literal = token["raw"] if token["raw"] is not None else token["text"]
        if literal is None:
            return " "
        literals.append(literal)
        return f'"{len(literals) - 1}"'

    text = LITERAL_OR_COMMENT.sub(numbered, source.read_text(encoding="utf-8", errors="replace"))
    found: dict[str, str] = {}
    for registration in REGISTRATION.finditer(text):
        definition = "".join(literals[int(number)] for number in re.findall(r"\d+", registration[1]))
        name, bracket, rest = definition.strip().partition("(")
        if bracket:
            found.setdefault(name.strip(), " ".join(f"({rest}".split()))
    return found
