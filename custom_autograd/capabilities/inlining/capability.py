"""Inlining: compiled graphs hold the reference of an op in place of the op, so that its neighbours can fuse with it.

The op is taken apart where AOTAutograd makes graphs functional, below autograd: gradients are those of the op's rules,
as everywhere else. `torch.library.triton_op` is taken apart there too. An exported program keeps the op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from custom_autograd.capabilities.inlining.results import ReferenceInGraphs
from custom_autograd.registration import rule_types
from custom_autograd.registration.capability import Capability, add
from custom_autograd.registration.one_tuple import enclosed
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private.dispatch import register_torch_dispatch
from custom_autograd.torch_private.modes import FunctionalTensorMode

REFERENCE = "reference"
_is_switched_off: ContextVar[bool] = ContextVar("is_switched_off", default=False)


class Inlining(Capability):
    """The reference in place of the op, from `inline="reference"`."""

    name = "inline"

    def attach(self, record: OpRecord) -> None:
        """Register the rule for the mode that makes graphs functional, once."""
        if record.registrations.inline is None or FunctionalTensorMode in record.attached:
            return
        assert record.library is not None
        register_torch_dispatch(record.library, record.dispatcher_name.qualifier, FunctionalTensorMode, _rule(record))
        record.attached.add(FunctionalTensorMode)

    def describe(self, record: OpRecord) -> str:
        """Return what compiled graphs hold."""
        if record.registrations.inline is None:
            return "none: a compiled graph holds the op as one node"
        if record.reference() is None:
            return f"declared ({record.declaration.location}), and there is no reference: compiling raises"
        return f"declared ({record.declaration.location}): a compiled graph holds the reference"


def register(record: OpRecord, what: str) -> None:
    """Take the option `inline=` of a declaration."""
    add(record, rule_types.Inline(record.declaration.location, what), replace=True)


@contextmanager
def without_inlining() -> Iterator[None]:
    """Leave every op in compiled graphs as it is, while the context is open; caches on disk do not know of it."""
    token = _is_switched_off.set(True)
    try:
        yield
    finally:
        _is_switched_off.reset(token)


def _rule(record: OpRecord) -> Callable[..., Any]:
    run = enclosed(record.declaration.schema, ReferenceInGraphs(record))

    def rule(
        mode: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # Any: as torch passes it
        if record.registrations.inline is None or _is_switched_off.get() or torch.compiler.is_exporting():
            return mode.__torch_dispatch__(function, types, args, kwargs)
        with mode:
            return run(*args, **(kwargs or {}))

    return rule
