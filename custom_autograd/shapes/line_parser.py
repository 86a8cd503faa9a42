"""Parses a line of shapes. What cannot be read is an error that points at the character."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from custom_autograd.shapes.notation import Dim, Item, Line

TOKEN = re.compile(r"\s*(->|\.\.\.|\w+|[\[\]():,#*?+]|$)")


class NotationError(ValueError):
    """A line of shapes cannot be read.

    Attributes:
        problem: what is wrong.
        found: the line, and below it a mark under the character.
    """

    def __init__(self, problem: str, text: str, position: int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.found = f"{text}\n{' ' * (INDENT + position)}^"


COMMAS = "dimensions are written without commas"
INDENT = 13
"""Where the facts of a message begin: see core/messages.py."""


def parse_line(text: str) -> Line:
    """Return a line."""
    return _Parser(re.sub(r"\s", " ", text)).line()


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    position: int


class _Parser:
    """Reads one line, token by token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split())
        self._next = 0
        self._along: set[str] = set()
        self._sums: list[tuple[_Token, tuple[str | int, ...]]] = []

    def line(self) -> Line:
        inputs = self._items("->")
        if not self._take("->"):
            raise self._error("'->' is expected, between inputs and outputs")
        outputs = self._items("")
        if self._peek().text:
            raise self._error("the end of the line is expected")
        line = Line(self._text.strip(), tuple(inputs), tuple(outputs), frozenset(self._along))
        self._check_kinds(line)
        for plus, factors in self._sums:
            if any(factor not in line.along for factor in factors if isinstance(factor, str)):
                raise self._error("a dimension with '+' cannot be cut into slices: write it in brackets, [n+1]", plus)
        return line

    def _split(self) -> Iterator[_Token]:
        position = 0
        while True:
            found = TOKEN.match(self._text, position)
            if found is None:
                start = position + len(self._text[position:]) - len(self._text[position:].lstrip())
                raise NotationError(f"{self._text[start]!r} has no meaning in a line of shapes", self._text, start)
            yield _Token(found[1], found.start(1))
            if not found[1]:
                return
            position = found.end()

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> bool:
        if self._peek().text in texts:
            self._next += 1
            return True
        return False

    def _error(self, problem: str, token: _Token | None = None) -> NotationError:
        return NotationError(problem, self._text, (token or self._peek()).position)

    def _items(self, end: str) -> list[Item]:
        found: dict[str, Item] = {}
        while self._peek().text != end:
            head = self._peek()
            item = self._item()
            if item.name in found:
                raise self._error(f"'{item.name}' is given twice", head)
            found[item.name] = item
            if not self._take(",") and self._peek().text != end:
                break
        return list(found.values())

    def _item(self) -> Item:
        head = self._peek()
        if not head.text.isidentifier():
            raise self._error("the name of a tensor is expected")
        self._next += 1
        is_optional = self._take("?")
        if not self._take(":"):
            if self._tokens[self._tokens.index(head) - 1].text == ",":
                raise self._error(COMMAS, self._tokens[self._tokens.index(head) - 1])
            raise self._error(f"':' is expected after '{head.text}'")
        dims = self._dims()
        if sum(dim.is_many for dim in dims) > 1:
            problem = f"'{head.text}' has two groups of any number of dimensions, and nothing marks where one ends"
            raise self._error(problem, head)
        return Item(head.text, tuple(dims), is_optional)

    def _dims(self) -> list[Dim]:
        found: list[Dim] = []
        while self._peek().text not in (",", "->", ""):
            opening = self._peek()
            if self._take("["):
                found += self._bracketed(opening)
            else:
                found.append(self._dim())
        return found

    def _bracketed(self, opening: _Token) -> list[Dim]:
        found: list[Dim] = []
        while not self._take("]"):
            if self._peek().text in (",", "->", "", ":", "["):
                raise self._error("this '[' is not closed before the next tensor", opening)
            found.append(self._dim())
        if not found:
            raise self._error("these brackets are empty", opening)
        self._along.update(name for dim in found for name in dim.names)
        return found

    def _dim(self) -> Dim:
        start = self._peek()
        marks = self._marks()
        body = self._peek()
        if body.text == "...":
            factors: tuple[str | int, ...] = ()
            self._next += 1
        elif body.text == "(":
            factors = self._product()
        else:
            factors = () if body.text == "_" else (self._factor(),)
            self._next += body.text == "_"
        is_many = "*" in marks or body.text == "..."
        if "*" in marks and (len(factors) != 1 or isinstance(factors[0], int)):
            raise self._error("'*' is written before one name only", start)
        if "#" in marks and not any(isinstance(factor, str) for factor in factors):
            raise self._error("'#' is written before a name or a product of names", start)
        return Dim(factors, is_many, "#" in marks, self._added(factors, is_many=is_many))

    def _added(self, factors: tuple[str | int, ...], *, is_many: bool) -> int:
        """Return the number behind a '+', or 0."""
        plus = self._peek()
        if not self._take("+"):
            return 0
        number = self._peek()
        if not number.text.isdecimal() or is_many or not any(isinstance(factor, str) for factor in factors):
            raise self._error("'+' is written between a name and a number: n+1", plus)
        self._next += 1
        self._sums.append((plus, factors))
        return int(number.text)

    def _marks(self) -> str:
        marks = ""
        while self._peek().text in ("#", "*"):
            if self._peek().text in marks:
                raise self._error(f"'{self._peek().text}' is given twice")
            marks += self._peek().text
            self._next += 1
        return marks

    def _product(self) -> tuple[str | int, ...]:
        opening, found = self._peek(), list[str | int]()
        self._next += 1
        while not self._take(")"):
            behind = [token.text for token in self._tokens[self._next + 2 : self._next + 4]]
            if self._peek().text == "," and ":" not in behind:  # which begins another tensor
                raise self._error(COMMAS)
            if self._peek().text in (",", "->", "", "[", "]", ":"):
                raise self._error("this '(' is not closed", opening)
            found.append(self._factor())
        if len(found) < 2:
            raise self._error("a product has two factors or more", opening)
        return tuple(found)

    def _factor(self) -> str | int:
        token = self._peek()
        if token.text.isdecimal():
            self._next += 1
            return int(token.text)
        if not token.text.isidentifier() or token.text == "_":
            raise self._error("a dimension is expected: a name, a number or a product")
        self._next += 1
        return token.text

    def _check_kinds(self, line: Line) -> None:
        """Raise if one name stands for one dimension here and for a group there."""
        groups = line.groups()
        for dim in line.dims():
            wrong = [name for name in dim.names if name in groups and not dim.is_many]
            if wrong:
                name = wrong[0]
                problem = f"'{name}' is one dimension here and any number of them, '*{name}', elsewhere"
                raise NotationError(problem, self._text, self._position_of(name))

    def _position_of(self, name: str) -> int:
        """Return where a name stands as one dimension."""
        pairs = zip(self._tokens, self._tokens[1:], strict=False)
        plain = [after for before, after in pairs if after.text == name and before.text != "*"]
        heads = {
            token.position for token, after in zip(self._tokens, self._tokens[1:], strict=False) if after.text in ":?"
        }
        return next(token.position for token in plain if token.position not in heads)
