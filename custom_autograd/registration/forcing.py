"""Which kernel somebody insists on: `op.use_kernel("triton")`, or CUSTOM_AUTOGRAD_KERNELS=namespace::op=triton."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager

from custom_autograd.core.errors import KernelError
from custom_autograd.core.messages import format_message
from custom_autograd.torch_private import thread_values

VARIABLE = "CUSTOM_AUTOGRAD_KERNELS"


def wanted_by_thread(key: int) -> str | None:
    """The kernel that this thread insists on for what has this key, or None."""
    table: dict[int, str] = thread_values.get(VARIABLE, {})
    return table.get(key)


@contextmanager
def insisting(key: int, name: str) -> Iterator[None]:
    """Insists on a kernel, in this thread and in the backward passes that start in it; contexts nest."""
    before: dict[int, str] = thread_values.get(VARIABLE, {})
    thread_values.put(VARIABLE, {**before, key: name})
    try:
        yield
    finally:
        thread_values.put(VARIABLE, before)


def wanted_by_environment(op: str) -> str | None:
    """The kernel that the environment insists on for an op, or None.

    Raises:
        KernelError: the variable cannot be read.
    """
    text = os.environ.get(VARIABLE)
    return _parse(text).get(op) if text else None


@functools.cache
def _parse(text: str) -> dict[str, str]:
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        op, equals, name = (piece.strip() for piece in part.partition("="))
        if not equals or not name or "::" not in op:
            raise KernelError(
                format_message(
                    VARIABLE,
                    "the environment variable cannot be read",
                    expected="namespace::op=kernel, separated by commas",
                    found=repr(part),
                    do=f"correct it, or unset {VARIABLE}",
                )
            )
        found[op] = name
    return found
