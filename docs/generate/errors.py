"""The index of errors: every message of the package, by class and origin, as it is shown where a test pins it."""

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
FEWEST_LETTERS = 12
"""A message of fewer letters would take any text for its own."""


def page(root: Path) -> str:
    """The Markdown of the index."""
    found = messages(root / "custom_autograd")
    shown = {key: example for key, example in examples(found, root / "tests" / "messages").items() if example}
    titles = _titles(sorted({message.path.relative_to(root / "custom_autograd") for message in found}))
    places = anchors(found)
    parts = [
        "# Errors",
        "Every message that the package raises, read from its source when this page is built.\n"
        "What stands in braces is a name or a value of the call.\n"
        "Where a test pins a message, it is shown as a reader sees it.",
        "The classes are these:",
        table(("class", "derives from", "what to do"), classes(errors.__doc__ or "")),
        f"There are {len(found)} messages, by class, and by the file of `custom_autograd/` that raises them.\n"
        "The `#` before a message is a link to it.",
    ]
    for error, title in TITLES.items():
        own = [message for message in found if message.error == error]
        parts += [f"## {title}", *INTRODUCTIONS.get(error, ())] if own else []
        for path, group in _by_file(own):
            parts.append(f"### {titles[path.relative_to(root / 'custom_autograd')]}")
            parts += [_entry(row, places[row], shown.get((row.error, row.text))) for row in group]
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


def classes(docstring: str) -> Iterator[tuple[str, str, str]]:
    """A row for each line of the tree of exceptions: the class, what it derives from, and what to do."""
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
ALL = "whatever this package refuses: catch it to catch all of these"


def _by_file(own: list[Message]) -> list[tuple[Path, list[Message]]]:
    groups: dict[Path, list[Message]] = {}
    for message in own:
        groups.setdefault(message.path, []).append(message)
    return list(groups.items())


def _titles(paths: list[Path]) -> dict[Path, str]:
    """What each file of the package is about, by its name; the folder is said where two files have one name."""
    names = {path: (path.parent.name if path.stem == "__init__" else path.stem) for path in paths}
    number = collections.Counter(names.values())
    titles = {}
    for path, name in names.items():
        words = name.replace("_", " ").capitalize()
        titles[path] = f"{words} ({path.parent.name.replace('_', ' ')})" if number[name] > 1 else words
    return titles


def anchors(found: list[Message]) -> dict[Message, str]:
    """The name of the place of each message: its class and first words, with a number where others have the same."""
    seen: collections.Counter[str] = collections.Counter()
    names = {}
    for message in found:
        words = re.findall(r"[a-z0-9]+", message.text.lower())[:WORDS]
        name = "-".join(["message", message.error.lower(), *words])
        seen[name] += 1
        names[message] = name if seen[name] == 1 else f"{name}-{seen[name]}"
    return names


WORDS = 8


def _entry(message: Message, anchor: str, example: str | None) -> str:
    lines = [f"{anchored(anchor)} {code(message.text)}"]
    facts = dict(message.facts)
    for name, label in (("expected", "Expected"), ("do", "What to do")):
        if name in facts:
            text = prose(facts[name]) if "{" not in facts[name] else escape(facts[name])
            lines.append(f"{label}: {text}" + "." * (not text.endswith(".")))
    text = "\\\n".join(lines)
    return text + ("\n\n" + folded("As it is shown", block(example)) if example else "")
