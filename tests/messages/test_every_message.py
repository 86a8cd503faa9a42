"""Every message has its parts: each place that raises one says what to do, and each pinned text reads as the others.

op, argument       the first line begins with the op, and names in quotes what is wrong
expected, found    what is right and what is there, or what to do about it
rule, declared     file:line
do                 what to do, wherever expected and found do not say it
words              whole sentences in few lines, without "please", "invalid" or exclamation marks
"""

import ast
import re
from pathlib import Path

import pytest
from tables import each

from custom_autograd.core import errors

ROOT = Path(__file__).parents[2]
CLASSES = {
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.CustomAutogradError)
}
MOST_LINES, LONGEST_LINE = 8, 300
LACKING = re.compile(r"\bplease\b|\binvalid\b|[^a]!|#define|\bNoneType\b|0x[0-9a-f]{6}", re.I)


def messages_of(pinned: str) -> list[str]:
    """Return each message of a pinned text, where `together` wrote what they begin with and their places once."""
    first, *others = pinned.splitlines()
    if not re.fullmatch(r"\w+(: \S+)?", first):
        return [pinned]
    bodies = re.split(r"\n(?! )", "\n".join(others))
    places = bodies.pop(0) if bodies[0].startswith(" ") else ""
    return [f"{first}: {body}\n{places}" for body in bodies]


PINNED = [
    pytest.param(text, id=f"{path.stem.removeprefix('test_')}-{node.lineno}")
    for path in sorted(Path(__file__).parent.glob("test_*.py"))
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "assert_expected_inline"
    if isinstance(node.args[-1], ast.Constant) and node.args[-1].value.partition(":")[0] in CLASSES
    for text in messages_of(node.args[-1].value)
]

QUOTED = "the schema cannot be parsed: "  # in PyTorch's words
MAKERS = ("refuse", "_refuse", "_fail")
OTHERS = ("isinstance", "issubclass", "raise_text", "raise_misfit", "partial")


def name_of(node: ast.expr) -> str:
    return getattr(node, "id", None) or getattr(node, "attr", "")


def raised() -> list[tuple[str, ast.Call]]:
    """Every call in the package that makes an error of ours from an op and a problem, with its place."""
    found = []
    for path in sorted((ROOT / "custom_autograd").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args:
                is_made = {name_of(node.func), name_of(node.args[0])} & CLASSES and len(node.args) > 1
                if (name_of(node.func) in MAKERS and node.keywords) or (is_made and name_of(node.func) not in OTHERS):
                    found.append((f"{path.relative_to(ROOT).as_posix()}:{node.lineno}", node))
    return found


def says_what_to_do(call: ast.Call) -> bool:
    given = {keyword.arg for keyword in call.keywords}
    return None in given or "do" in given or {"expected", "found"} <= given


def test_an_error_says_what_to_do_or_what_is_right_and_what_is_there():
    calls = raised()

    assert len(calls) > 300
    assert [] == [place for place, call in calls if not says_what_to_do(call)]


@each("text", PINNED)
def test_a_text_has_its_parts(text):
    first, *facts = text.splitlines()
    labels = {line.split()[0] for line in facts if re.match(r"  \w", line)}

    assert re.match(r"\w+: [\w.:/<>-]+(, \w+)*: ", first), "the op, or what stands for it"
    assert labels & {"do"} or {"expected", "found"} <= labels, "what to do"
    assert "::" not in first or "declared" in labels or "FILE.py:LINE" in text or "not declared" in first, "where"
    assert QUOTED in first or LACKING.search(text) is None
    assert len(facts) < MOST_LINES
    assert max(map(len, text.splitlines())) <= LONGEST_LINE
