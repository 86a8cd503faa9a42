"""Markdown as MyST reads it: escaped text, tables, code, folded parts, and docstrings of gallery files."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterable, Sequence

SPECIAL = re.compile(r"([\\`*_{}\[\]<>|$#~])")
FIELD = re.compile(r"^(Shapes|Dtypes|Source|Sources|Example|Raises|Memory|Note|Kernels): (.*)", re.S)


def escape(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def cell(text: str) -> str:
    """Markdown for a cell of a table: a bar would end it."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def code(text: str) -> str:
    """Inline code; what has backticks itself gets a longer fence."""
    line = " ".join(text.split())
    fence = "``" if "`" in line else "`"
    return cell(f"{fence} {line} {fence}" if "`" in line else f"{fence}{line}{fence}")


def block(text: str, language: str = "text") -> str:
    """A block of code, behind a fence that is in no line of it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; what its cells hold is Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def folded(summary: str, markdown: str) -> str:
    """A part that opens when its title is pressed."""
    return f"<details>\n<summary>{html.escape(summary)}</summary>\n\n{markdown}\n\n</details>"


def anchored(name: str) -> str:
    """A place to link to, and the link to it."""
    return f'<a class="place" id="{name}" href="#{name}" aria-label="link to this message">#</a>'


def paragraphs(docstring: str) -> list[str]:
    """The paragraphs of a docstring as Markdown: indented ones are formulas, named lines become a list."""
    found = []
    for part in re.split(r"\n\s*\n", textwrap.dedent(docstring).strip("\n")):
        if all(line.startswith("    ") for line in part.splitlines()):
            found.append(block(textwrap.dedent(part)))
        else:
            found.append(_plain(part))
    return found


def without_links(text: str) -> str:
    """Markdown with the text of each link in its place: where it leads to is no page."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def _plain(part: str) -> str:
    """A paragraph; each of its lines that begins with a known name is an item of a list, and so is what follows one."""
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
    """Escaped text in which what stands between backticks stays code."""
    parts = re.split(r"(``.+?``|`[^`]+`)", text)
    return "".join(part if part.startswith("`") else escape_inside(part) for part in parts)


def escape_inside(text: str) -> str:
    """As `escape`, with the spaces at both ends kept."""
    return SPECIAL.sub(r"\\\1", re.sub(r"\s+", " ", text))
