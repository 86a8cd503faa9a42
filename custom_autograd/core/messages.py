"""One layout for every message: what is wrong, what was expected and found, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

LONGEST_VALUE = 80


def format_message(
    op: str,
    problem: str,
    *,
    expected: str | None = None,
    found: str | None = None,
    rule: str | None = None,
    declared: str | None = None,
    do: str | None = None,
) -> str:
    """Lay out a message: a first line, then one line per known fact.

    Returns:
        The message, without a trailing newline.
    """
    facts = {"expected": expected, "found": found, "rule": rule, "declared": declared, "do": do}
    lines = [f"{op}: {problem}"]
    lines += [f"  {label:<10} {text}" for label, text in facts.items() if text]
    return "\n".join(lines)


def show(value: Any) -> str:  # Any: a message may quote whatever a user passed
    """Return the repr of a value in one line, cut to a readable length."""
    text = " ".join(line.strip() for line in repr(value).splitlines())
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."


def is_text(value: Any) -> bool:  # Any: whatever a user passed
    """Return True if a value is a string that UTF-8 can hold, as the dispatcher needs: one without lone surrogates."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def quote(names: Iterable[str]) -> str:
    """Return names in quotes, separated by commas; 'none' where there are none."""
    return ", ".join(f"'{name}'" for name in names) or "none"


def explicit_none(names: Sequence[str]) -> str:
    """Return the advice for a rule whose results are zero: None without names may be a missing `return`."""
    return f"return {{{', '.join(f'{name!r}: None' for name in names)}}}"


def suggest(given: object, valid: Iterable[str]) -> str | None:
    """Return the nearest valid name, or the only one that begins so, as advice; None if nothing is near."""
    name, names = str(given), list(valid)
    longer = [one for one in names if name and one.startswith(name)]
    nearest = longer if len(longer) == 1 else difflib.get_close_matches(name, names, n=1)
    return f"did you mean '{nearest[0]}'?" if nearest else None


def advise(name: object, valid: Iterable[str]) -> str:
    """Return what to do about a name that is not valid: the nearest one, or the choice."""
    names = list(valid)
    return suggest(name, names) or (f"name one of {quote(names)}" if names else f"leave {name!r} out")


def advise_tensor(value: Any) -> str:  # Any: what stands where a tensor is expected
    """Return what to do about a value that is not a tensor."""
    if hasattr(value, "__dlpack__"):  # an array of NumPy, JAX or CuPy
        make = "from_numpy" if type(value).__module__ == "numpy" else "from_dlpack"
        return f"return torch.{make}(...), which shares memory, or torch.tensor(...), which copies"
    return "is a 'return' missing?" if value is None else "return a tensor: torch.tensor(...)"


def advise_derivative(value: Any) -> str:  # Any: as above
    """Return what to do about a gradient or a tangent that is not a tensor."""
    is_zero = type(value) in (int, float) and value == 0
    return "return None, which means zero" if is_zero else advise_tensor(value)


def first_line(error: Exception) -> str:
    """Return the problem that an error names, without the facts below it."""
    return str(error).partition("\n")[0]
