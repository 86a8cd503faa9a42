"""Inlining: compiled graphs hold what an op does in place of the op, so that its neighbours can fuse with it.

register_kernel(..., inline=True)    the operations and launches of that kernel, where it would run
custom_op(..., inline="reference")   else the operations of the reference

The op is taken apart where AOTAutograd makes graphs functional, below autograd: gradients are those of the op's rules,
as everywhere else. `torch.library.triton_op` is taken apart there too. An exported program keeps the op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.capability import Capability
from custom_autograd.registration.dispatcher_library import enclosed, implement_torch_dispatch
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import Registration
from custom_autograd.torch_private.dispatch import FunctionalTensorMode

REFERENCE = "reference"
_is_switched_off: ContextVar[bool] = ContextVar("is_switched_off", default=False)


@dataclass(frozen=True, slots=True)
class Inline(Registration):
    """What compiled graphs hold in place of the op, from `custom_op(..., inline=...)`.

    Attributes:
        inline: "reference".
    """

    kind = "inline"
    inline: str

    @property
    def settings(self) -> str:
        """Return what it is."""
        return self.inline

    @property
    def is_inlined(self) -> bool:
        """Return True."""
        return True


class Inlining(Capability):
    """A kernel or the reference in place of the op."""

    name = "inline"

    def attach(self, record: OpRecord) -> None:
        """Register the rule for the mode that makes graphs functional, once."""
        if record.is_inlined:
            implement_torch_dispatch(record, FunctionalTensorMode, _rule(record))

    def describe(self, record: OpRecord) -> str:
        """Return what compiled graphs hold."""
        kernels = [kernel for kernel in record.kernels.all() if kernel.is_inlined]
        if kernels:
            titles = " and the ".join(f"{kernel.label} ({kernel.location})" for kernel in kernels)
            return f"registered: compiled graphs hold the {titles}"
        if record.registrations.get(Inline) is None:
            return "none: a compiled graph holds the op as one node"
        if record.reference() is None:
            return f"declared ({record.declaration.location}), and there is no reference: compiling raises"
        return f"declared ({record.declaration.location}): a compiled graph holds the reference"


@contextmanager
def without_inlining() -> Iterator[None]:
    """Leave every op in compiled graphs as it is, while the context is open; caches on disk do not know of it."""
    token = _is_switched_off.set(True)
    try:
        yield
    finally:
        _is_switched_off.reset(token)


def _rule(record: OpRecord) -> Callable[..., Any]:
    from custom_autograd.capabilities.inlining.traced import (  # loaded for ops that are inlined
        BodyInGraphs,
        find_traced,
    )

    run = BodyInGraphs(record)

    def rule(
        mode: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # Any: as torch passes it
        if _is_switched_off.get() or torch.compiler.is_exporting():
            return mode.__torch_dispatch__(function, types, args, kwargs)
        traced = find_traced(record, run.bind, args, kwargs or {})
        if traced is None:
            return mode.__torch_dispatch__(function, types, args, kwargs)
        try:
            with mode:
                return enclosed(record.declaration.schema, partial(run, traced))(*args, **(kwargs or {}))
        except KernelUnavailable as error:
            if traced.kernel is None:
                raise
            record.kernels.pass_over(traced.kernel, error)
        return rule(mode, function, types, args, kwargs)

    return rule
