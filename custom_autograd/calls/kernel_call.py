"""Source of a call of a kernel: with grad mode off, of another if it is not available, with a note on its errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from custom_autograd.calls.source import Source
from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.registration.registry import OpRecord
from custom_autograd.values.user_code import add_note


def helpers(record: OpRecord) -> dict[str, Any]:
    """Return what the source names (Any: classes and functions)."""
    return {
        "KernelUnavailable": KernelUnavailable,
        "instead": record.kernels.instead,
        "note_kernel": partial(note_kernel, record),
    }


def note_kernel(record: OpRecord, function: Callable[..., Any], error: Exception) -> None:
    """Note on an exception that leaves a kernel which one it is, unless it names the op already."""
    if getattr(error, "op", None) != record.name:
        add_note(error, f"raised in the {record.kernels.describe(function)} of {record.name}")


def write_kernel_call(source: Source, call: str, condition: str) -> None:
    """Write a call of a kernel with grad mode off.

    Args:
        source: to write to.
        call: source of the call.
        condition: source that is true where grad mode need not be switched off.
    """
    with source.block(f"if {condition}"):
        write_call_or_another(source, call)
    with source.block("else"):  # the switch is inside: an exception of a signal handler may follow it at once
        write_call_or_another(source, call, before="$set_grad_enabled(False)")
        with source.block("finally"):
            source.line("$set_grad_enabled(True)")


def write_call_or_another(source: Source, call: str, *, before: str = "") -> None:
    """Write a call of a kernel, and of another where it turns out not to be available; a try costs nothing.

    Other exceptions get a note on the kernel.

    Args:
        source: to write to.
        call: source of the call.
        before: source of what is done first, if anything.
    """
    with source.block("try"):
        if before:
            source.line(before)
        source.line(f"$result = {call}")
    with source.block("except $KernelUnavailable as $error"):
        source.line(f"$result = {call.replace('$function', '$instead($function, $error)', 1)}")
    with source.block("except $Exception as $error"):
        source.lines("$note_kernel($function, $error)", "raise")
