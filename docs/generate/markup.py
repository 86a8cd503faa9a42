"""Write Markdown for MyST: escaped text, tables, code, folded parts, and docstrings of gallery files."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterable, Sequence

SPECIAL = re.compile(r"([\\`*_{}\[\]<>|$#~])")
FIELD = re.compile(r"^(Shapes|Dtypes|Source|Sources|Example|Raises|Memory|Note|Kernels): (.*)", re.S)


def escape(text: str) -> str:
    """Return text on one line, escaped so that Markdown shows it unchanged."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def cell(text: str) -> str:
    """Return Markdown for a cell of a table, with escaped bars."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def code(text: str) -> str:
    """Return inline code, with a longer fence for text that contains backticks."""
    line = " ".join(text.split())
    fence = "``" if "`" in line else "`"
    return cell(f"{fence} {line} {fence}" if "`" in line else f"{fence}{line}{fence}")


def block(text: str, language: str = "text") -> str:
    """Return a block of code, with a fence that the code does not contain."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are already Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def folded(summary: str, markdown: str) -> str:
    """Return a section that is folded until its title is clicked."""
    return f"<details>\n<summary>{html.escape(summary)}</summary>\n\n{markdown}\n\n</details>"


def anchored(name: str) -> str:
    """Return an anchor and a link to it."""
    return f'<a class="place" id="{name}" href="#{name}" aria-label="link to this message">#</a>'


def paragraphs(docstring: str) -> list[str]:
    """Return the paragraphs of a docstring as Markdown: indented ones are formulas, named lines become a list."""
    found = []
    for part in re.split(r"\n\s*\n", textwrap.dedent(docstring).strip("\n")):
        if all(line.startswith("    ") for line in part.splitlines()):
            found.append(block(textwrap.dedent(part)))
        else:
            found.append(_plain(part))
    return found


def without_links(text: str) -> str:
    """Replace each link in Markdown by its text."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def _plain(part: str) -> str:
    """Return a paragraph; lines that begin with a known name, and sentences after them, become items of a list."""
    items: list[str] = []
    for line in part.splitlines():
        is_sentence = bool(items) and FIELD.match(items[0]) and items[-1].endswith(".") and line[:1].isupper()
        if FIELD.match(line) or not items or is_sentence:
            items.append(line.strip())
        else:
            items[-1] += " " + line.strip()
    return "\n".join(map(_item, items)) if len(items) > 1 or FIELD.match(items[0]) else prose(items[0])


def _item(text: str) -> str:
    field = FIELD.match(text)
    return f"- **{field[1]}**: {prose(field[2])}" if field else f"- {prose(text)}"


def prose(text: str) -> str:
    """Escape text, except code between backticks."""
    parts = re.split(r"(``.+?``|`[^`]+`)", text)
    return "".join(part if part.startswith("`") else escape_inside(part) for part in parts)


def escape_inside(text: str) -> str:
    """Escape text like `escape`, and keep the spaces at both ends."""
    return SPECIAL.sub(r"\\\1", re.sub(r"\s+", " ", text))
