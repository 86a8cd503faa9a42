"""Which kernel is forced: `op.use_kernel("triton")`, or CUSTOM_AUTOGRAD_KERNELS=namespace::op=triton.

It counts in a thread or an asyncio task, and in the backward passes that start there.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from custom_autograd.core.errors import KernelError
from custom_autograd.core.names import Name
from custom_autograd.torch_private.handed_on import HandedOn

VARIABLE = "CUSTOM_AUTOGRAD_KERNELS"

Table = Mapping[int, str]
_forced: HandedOn[Table] = HandedOn(VARIABLE)


def wanted_here(key: int) -> str | None:
    """Return the forced kernel of this thread or task for the owner of this key, or None."""
    table = _forced.get()
    return None if table is None else table.get(key)


@contextmanager
def insisting(key: int, name: str) -> Iterator[None]:
    """Force a kernel in this thread or task and in the backward passes that start in it; contexts nest."""
    with _forced.set({**(_forced.get() or {}), key: name}):
        yield


def wanted_by_environment(op: Name) -> str | None:
    """Return the kernel that the environment forces on an op, or None.

    Raises:
        KernelError: the variable cannot be read.
    """
    if VARIABLE not in os.environ:  # `get` raises and catches a KeyError, which takes five times as long
        return None
    return _parse(os.environ[VARIABLE]).get(str(op))


@functools.cache
def _parse(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        op, equals, name = (piece.strip() for piece in part.partition("="))
        if not equals or not name or "::" not in op:
            raise KernelError(
                VARIABLE,
                "the environment variable cannot be read",
                expected="namespace::op=kernel, separated by commas",
                found=repr(part),
                do=f"correct it, or unset {VARIABLE}",
            )
        if found.setdefault(op, name) != name:
            problem = f"the environment variable names two kernels for {op}"
            raise KernelError(VARIABLE, problem, found=f"{found[op]!r} and {name!r}", do="leave one out")
    return found
