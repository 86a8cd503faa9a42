"""Runs a user's rule: an exception keeps its identity and gains a note that says which rule of which op it left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from custom_autograd.core.errors import GradientError
from custom_autograd.core.locations import location_of
from custom_autograd.registration.rule_types import Rule


def noted(op: str, rule: Rule, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return a rule's function (or another one of the same rule) that notes where an exception came from.

    Any: rules take and return what their kind says.
    """
    chosen = rule.function if function is None else function
    note = note_of(op, rule)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return chosen(*args, **kwargs)
        except Exception as error:
            add_note(error, note)
            if _needs_memory(error):
                raise _without_memory(op, rule, error) from error
            raise

    return call


def _needs_memory(error: Exception) -> bool:
    """Return True if a tensor without memory was to become a NumPy array, or to give its address."""
    return type(error) is RuntimeError and any(text in str(error) for text in WITHOUT_MEMORY)


def _without_memory(op: str, rule: Rule, error: Exception) -> GradientError:
    return GradientError(
        op,
        f"the {rule.title} rule reads the memory of a tensor that has none",
        expected="differentiable PyTorch operations, or ops: torch.func and torch.compile run the rule on tensors "
        "without memory, which NumPy and native code cannot read",
        found=str(error).splitlines()[0],
        rule=rule.where,
        do="make that part of the rule an op of its own (custom_op), and call that op in the rule",
    )


WITHOUT_MEMORY = (
    "Cannot access data pointer of Tensor that doesn't have storage",
    ".numpy() is not supported for tensor subclasses",
)
"""What torch says of NumPy and of native code that meet the tensors of a transform or a compiler."""


def note_of(op: str, rule: Rule) -> str:
    """Return what is noted on an exception that leaves a rule."""
    return f"raised in the {rule.title} rule of {op}, {rule.location}"


def note_of_reference(op: str, reference: Callable[..., Any]) -> str:
    """Return what is noted on an exception that leaves a reference from which something is derived."""
    where = f"raised in the reference of {op}, {location_of(reference)}"
    return f"{where}: gradients and batching are derived from it, so it must use differentiable PyTorch operations only"


class NoteError(RuntimeError):
    """What is noted on an exception, as its cause: Python 3.10 shows no notes."""


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, once; on Python 3.10 as the end of its chain of causes."""
    attach: Callable[[str], None] | None = getattr(error, "add_note", None)
    if attach is not None:
        if note not in getattr(error, "__notes__", ()):
            with contextlib.suppress(Exception):  # an exception that takes no note counts more than the note
                attach(note)
        return
    last = error
    while last.__cause__ is not None:
        last = last.__cause__
    if str(last) != note:
        last.__cause__ = NoteError(note)
