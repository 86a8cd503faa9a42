"""Generate the index of errors: every message by class and file, with its full text if a test pins it."""

from __future__ import annotations

import ast
import collections
import re
from collections.abc import Iterator
from pathlib import Path

from custom_autograd.core import errors
from generate.markup import anchored, block, cell, code, escape, folded, prose, table
from generate.raised import BUILT_IN, ERRORS, OTHERS, SKIPS, Message, messages

PINNED = re.compile(r"(?P<error>\w+): (?:\S+: )?(?P<text>.*)", re.S)
TOGETHER = re.compile(r"\w+(: \S+)?")
"""Stands alone in the first line where a test pins several messages of one class, or of one op, as one text."""

FEWEST_LETTERS = 12
"""A message of fewer letters would match unrelated text."""


def page(root: Path) -> str:
    """Return the Markdown of the index."""
    found = messages(root / "custom_autograd")
    shown = {key: example for key, example in examples(found, root / "tests" / "messages").items() if example}
    titles = _titles(sorted({message.path.relative_to(root / "custom_autograd") for message in found}))
    places = anchors(found)
    parts = [
        "# Errors",
        "Every message that the package raises, read from its source when this page is built.\n"
        "Text in braces is replaced by a name or a value of the call.\n"
        "If a test pins a message, its full text is shown.",
        "These are the classes:",
        table(("class", "derives from", "what to do"), classes(errors.__doc__ or "")),
        f"There are {len(found)} messages, sorted by class and by the file of `custom_autograd/` that raises them.\n"
        "The `#` before a message is a link to it.",
    ]
    for error, title in TITLES.items():
        own = [message for message in found if message.error == error]
        parts += [f"## {title}", *INTRODUCTIONS.get(error, ())] if own else []
        for path, group in _by_file(own):
            parts.append(f"### {titles[path.relative_to(root / 'custom_autograd')]}")
            parts += [_record(row, places[row], shown.get((row.error, row.text))) for row in group]
    return "\n\n".join(parts) + "\n"


TITLES = {name: name for name in (*ERRORS, *OTHERS, *BUILT_IN)} | {SKIPS: "Why a check is skipped"}
INTRODUCTIONS = {
    "ValueError": ["Raised directly, or as the reason at the end of a message above: `argument '{name}': {error}`."],
    SKIPS: ["These are not raised: reports show them as the reasons of skipped checks."],
}


def pattern(text: str) -> re.Pattern[str]:
    """Return a pattern that matches a message with values for the names in braces."""
    pieces = re.split(r"(\{[^{}]*\})", text)
    return re.compile("".join(".*?" if piece.startswith("{") else re.escape(piece) for piece in pieces), re.S)


def pinned(folder: Path) -> list[str]:
    """Return every message that the tests of messages pin, alone or together with others."""
    found = []
    for file in sorted(folder.glob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            is_pin = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "assert_expected_inline"
            if is_pin and isinstance(node.args[-1], ast.Constant):
                found += _apart(str(node.args[-1].value))
    return found


def _apart(text: str) -> list[str]:
    """Return the messages that are pinned as one text: what all begin with, places of all, and then each."""
    head, *lines = text.splitlines()
    if not TOGETHER.fullmatch(head) or not lines:
        return [text]
    begin = next((number for number, line in enumerate(lines) if not line.startswith("  ")), len(lines))
    places, found = lines[:begin], list[list[str]]()
    for line in lines[begin:]:
        if line.startswith("  "):
            found[-1].append(line)
        else:
            found.append([f"{head}: {line}"])
    for message in found:
        advice = next((number for number, line in enumerate(message) if line.startswith("  do ")), len(message))
        message[advice:advice] = places
    return ["\n".join(message) for message in found]


def examples(found: list[Message], folder: Path) -> dict[tuple[str, str], str]:
    """Return the pinned text of each message that has one; if several match, the message with the most text has it."""
    shown: dict[tuple[str, str], str] = {}
    for text in pinned(folder):
        message = find(found, text)
        if message is not None:
            shown.setdefault((message.error, message.text), text)
    return shown


def find(found: list[Message], text: str) -> Message | None:
    """Return the message that matches a text, or None."""
    parts = PINNED.match(text)
    if parts is None:
        return None
    said = _line(parts["text"])
    candidates = [row for row in found if row.error == parts["error"] and _letters(row.text) >= FEWEST_LETTERS]
    fitting = [row for row in candidates if pattern(row.text).fullmatch(said)]
    return max(fitting, key=lambda row: _letters(row.text), default=None)


def _line(text: str) -> str:
    """Return the first line of a message, without the indented facts that follow."""
    return re.split(r"\n  \w", text, maxsplit=1)[0]


def _letters(text: str) -> int:
    return len(re.sub(r"\{[^{}]*\}", "", text))


def classes(docstring: str) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each line of the tree of exceptions: the class, its bases, and what to do."""
    above: list[str] = []
    for line in docstring.splitlines():
        drawn = CLASS.fullmatch(line)
        if drawn is None:
            continue
        depth = len(drawn["indent"]) // 2
        named = re.sub(r"^also ", "", drawn["also"] or "")
        parents = [*above[depth - 1 : depth], *([named] if named else [])] if depth else [named]
        above[depth:] = [drawn["name"]]
        yield code(drawn["name"]), ", ".join(map(code, parents)), cell(prose(drawn["text"] or ALL))


CLASS = re.compile(r"(?P<indent> *)(?P<name>[A-Z]\w+)(?: \((?P<also>[^)]*)\))?(?: {2,}(?P<text>.*))?")
"""A line of the tree; sentences have other signs, or a stop, after the first word."""
ALL = "the base class of all these errors: catch it to catch all of them"


def _by_file(own: list[Message]) -> list[tuple[Path, list[Message]]]:
    groups: dict[Path, list[Message]] = {}
    for message in own:
        groups.setdefault(message.path, []).append(message)
    return list(groups.items())


def _titles(paths: list[Path]) -> dict[Path, str]:
    """Return a title for each file of the package, with its folder if two files have the same name."""
    names = {path: (path.parent.name if path.stem == "__init__" else path.stem) for path in paths}
    number = collections.Counter(names.values())
    titles = {}
    for path, name in names.items():
        words = name.replace("_", " ").capitalize()
        titles[path] = f"{words} ({path.parent.name.replace('_', ' ')})" if number[name] > 1 else words
    return titles


def anchors(found: list[Message]) -> dict[Message, str]:
    """Return the anchor of each message: its class and first words, with a number if several have the same."""
    seen: collections.Counter[str] = collections.Counter()
    names = {}
    for message in found:
        words = re.findall(r"[a-z0-9]+", message.text.lower())[:WORDS]
        name = "-".join(["message", message.error.lower(), *words])
        seen[name] += 1
        names[message] = name if seen[name] == 1 else f"{name}-{seen[name]}"
    return names


WORDS = 8


def _record(message: Message, anchor: str, example: str | None) -> str:
    lines = [f"{anchored(anchor)} {code(message.text)}"]
    facts = dict(message.facts)
    for name, label in (("expected", "Expected"), ("do", "What to do")):
        if name in facts:
            text = prose(facts[name]) if "{" not in facts[name] else escape(facts[name])
            lines.append(f"{label}: {text}" + "." * (not text.endswith(".")))
    text = "\\\n".join(lines)
    return text + ("\n\n" + folded("Full text", block(example)) if example else "")
