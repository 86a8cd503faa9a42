"""Runs a user's rule: an exception keeps its identity and gains a note that says which rule of which op it left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from custom_autograd.registration.rules import Rule


def noted(op: str, rule: Rule, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A rule's function (or another one of the same rule) that notes where an exception came from.

    Any: rules take and return what their slot says.
    """
    chosen = rule.function if function is None else function
    note = note_of(op, rule)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return chosen(*args, **kwargs)
        except Exception as error:
            add_note(error, note)
            raise

    return call


def note_of(op: str, rule: Rule) -> str:
    """What is noted on an exception that leaves a rule."""
    return f"raised in the {rule.slot} rule of {op}, {rule.location}"


def add_note(error: BaseException, note: str) -> None:
    """Adds a note to an exception, once; on Python 3.10 as the end of its chain of causes."""
    attach: Callable[[str], None] | None = getattr(error, "add_note", None)
    if attach is not None:
        if note not in getattr(error, "__notes__", ()):
            attach(note)
        return
    last = error
    while last.__cause__ is not None:
        last = last.__cause__
    if str(last) != note:
        last.__cause__ = RuntimeError(note)
