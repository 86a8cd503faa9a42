"""Source of a call of a kernel: with grad mode off, and of another kernel if it is not available."""

from __future__ import annotations

from custom_autograd.calls.source import Source


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
