"""What the layers above keep on the record of an op: proofs, generated code, and what runs at the dispatcher's keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

GeneratedCall: TypeAlias = Callable[..., Any]
"""A generated function that calls one op (Any: it takes and returns what the op's schema says)."""


class DispatchedCalls(Protocol):
    """The calls of one op by way of the dispatcher; see dispatch/dispatched_calls.py."""

    generate: Callable[[], None]  # to be called before the two below are read
    call: GeneratedCall  # the call of the flat op
    in_graphs: GeneratedCall  # what `op(...)` runs while Dynamo traces it

    @property
    def observed(self) -> GeneratedCall:
        """Return the call of the flat op, as observers below Python see it."""
        raise NotImplementedError


class Proofs(Protocol):
    """What calls of one op run if they need no dispatcher; see dispatch/proofs.py."""

    def expect(self) -> None:
        """Note that the dispatcher has run the first call of a kind."""

    def forget(self) -> None:
        """Forget them all: something was registered since they were proven."""

    def take_over(self) -> None:
        """Note that the op's handle has its `__call__`."""


class GeneratedCode(Protocol):
    """The code that is generated from the schema and the rules of one op; see dispatch/generated.py."""

    @property
    def source(self) -> str:
        """Return its text."""
        raise NotImplementedError


class Road:
    """What runs at the dispatch keys of one op, found at the first call and kept until something changes.

    The dispatcher cannot exchange a kernel: what is registered there looks here in each call.

    Attributes:
        autograd: at the Autograd key, by None: (keyset, *args, **kwargs).
        kernels: at the key of a backend, by device type.
        batched: at the key of vmap, by None: what returns None for calls that need the general way.
    """

    __slots__ = ("__weakref__", "autograd", "batched", "kernels")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop it all: a rule, a kernel or the level of validation has changed."""
        self.autograd: dict[None, GeneratedCall] = {}
        self.batched: dict[None, GeneratedCall] = {}
        self.kernels: dict[str | None, GeneratedCall] = {}
