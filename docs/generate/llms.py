"""The page for language models, llms.txt: the title, the first sentence and the address of each page, in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

TOCTREE = re.compile(r"^```\{toctree\}\n(?::caption: (.*)\n)?(?::.*\n)*\n((?:[\w/-]+\n)+)```$", re.M)
FENCE = re.compile(r"^(`{3,}).*?^\1$", re.M | re.S)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def text_of(source: Path) -> str:
    """Return the contents of llms.txt for a folder of pages."""
    title, sentence = opening_of(source / "index.md")
    lines = [f"# {title}", "", f"> {sentence}"]
    for caption, names in contents_of(source / "index.md"):
        lines += ["", f"## {caption}", ""]
        for page in (each for name in names for each in with_children(source, name)):
            title, sentence = opening_of(source / f"{page}.md")
            lines.append(f"- [{title}]({page}.html): {sentence}")
    return "\n".join(lines) + "\n"


def contents_of(page: Path) -> list[tuple[str, list[str]]]:
    """Return the tables of contents of a page: the caption and the pages of each."""
    return [(caption, names.split()) for caption, names in TOCTREE.findall(page.read_text(encoding="utf-8"))]


def with_children(source: Path, page: str) -> Iterator[str]:
    """Yield a page, and the pages of its own tables of contents."""
    yield page
    for _, names in contents_of(source / f"{page}.md"):
        yield from (str(Path(page).parent / name) for name in names)


def opening_of(page: Path) -> tuple[str, str]:
    """Return the title of a page, and the first sentence of its text, without links."""
    _, title, rest = re.split(r"^# (.*)\n", FENCE.sub("", page.read_text(encoding="utf-8")), maxsplit=1, flags=re.M)
    text = re.search(r"^(?:\*\*)?[A-Z`].*", rest, re.M)
    line = LINK.sub(r"\1", text[0].replace("**", "")) if text else title
    return title, re.split(r"(?<=\.)\s|:$", line)[0]
