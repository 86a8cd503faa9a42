"""The index of errors: every message of the package, by class and origin, as it is shown where a test pins it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from custom_autograd.core import errors
from generate.markup import block, code, escape, folded, prose
from generate.raised import BUILT_IN, ERRORS, OTHERS, SKIPS, Message, messages

PINNED = re.compile(r"(?P<error>\w+): (?:\S+: )?(?P<text>.*)", re.S)
FEWEST_LETTERS = 12
"""A message of fewer letters would take any text for its own."""


def page(root: Path) -> str:
    """The Markdown of the index."""
    found = messages(root / "custom_autograd")
    shown = {key: example for key, example in examples(found, root / "tests" / "messages").items() if example}
    parts = [
        "# Errors",
        "Every message that the package raises, read from its source when this page is built.\n"
        "What stands in braces is a name or a value of the call.\n"
        "Where a test pins a message, it is shown as a reader sees it.",
        "The classes are these:",
        block((errors.__doc__ or "").split("\n\n", 1)[1]),
        f"There are {len(found)} messages.",
    ]
    for error, title in TITLES.items():
        own = [message for message in found if message.error == error]
        parts += [f"## {title}", *INTRODUCTIONS.get(error, ()), *_by_file(own, shown)] if own else []
    return "\n\n".join(parts) + "\n"


TITLES = {name: name for name in (*ERRORS, *OTHERS, *BUILT_IN)} | {SKIPS: "Why a check is skipped"}
INTRODUCTIONS = {
    "ValueError": ["Raised as it is, or as the reason at the end of a message above: `argument '{name}': {error}`."],
    SKIPS: ["These raise nothing: they are the reasons that a report gives."],
}


def pattern(text: str) -> re.Pattern[str]:
    """What a message looks like when values stand in the place of the names."""
    pieces = re.split(r"(\{[^{}]*\})", text)
    return re.compile("".join(".*?" if piece.startswith("{") else re.escape(piece) for piece in pieces), re.S)


def pinned(folder: Path) -> list[str]:
    """Every text that the tests of messages pin."""
    found = []
    for file in sorted(folder.glob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            is_pin = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "assert_expected_inline"
            if is_pin and isinstance(node.args[-1], ast.Constant):
                found.append(str(node.args[-1].value))
    return found


def examples(found: list[Message], folder: Path) -> dict[tuple[str, str], str]:
    """The pinned text of each message that has one; the message with the most words of its own takes it."""
    shown: dict[tuple[str, str], str] = {}
    for text in pinned(folder):
        message = find(found, text)
        if message is not None:
            shown.setdefault((message.error, message.text), text)
    return shown


def find(found: list[Message], text: str) -> Message | None:
    """The message that a text is, or None."""
    parts = PINNED.match(text)
    if parts is None:
        return None
    said = _line(parts["text"])
    candidates = [row for row in found if row.error == parts["error"] and _letters(row.text) >= FEWEST_LETTERS]
    fitting = [row for row in candidates if pattern(row.text).fullmatch(said)]
    return max(fitting, key=lambda row: _letters(row.text), default=None)


def _line(text: str) -> str:
    """The first line of a message: the facts follow, indented."""
    return re.split(r"\n  \w", text, maxsplit=1)[0]


def _letters(text: str) -> int:
    return len(re.sub(r"\{[^{}]*\}", "", text))


def _by_file(own: list[Message], shown: dict[tuple[str, str], str]) -> list[str]:
    parts = []
    for path in dict.fromkeys(message.path for message in own):
        parts.append(f"### {_title(path)}")
        parts += [_entry(message, shown.get((message.error, message.text))) for message in own if message.path == path]
    return parts


def _title(path: Path) -> str:
    """What a file answers: it says when its messages appear."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or path.name
    return prose(re.split(r"[.:](\s|$)", docstring, maxsplit=1)[0])


def _entry(message: Message, example: str | None) -> str:
    lines = [f"{code(message.text)}"]
    facts = dict(message.facts)
    for name, label in (("expected", "Expected"), ("do", "What to do")):
        if name in facts:
            text = prose(facts[name]) if "{" not in facts[name] else escape(facts[name])
            lines.append(f"{label}: {text}" + "." * (not text.endswith(".")))
    text = "\\\n".join(lines)
    return text + ("\n\n" + folded("As it is shown", block(example)) if example else "")
