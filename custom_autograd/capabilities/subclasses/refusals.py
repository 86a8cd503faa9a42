"""What is said where a tensor subclass refuses an op: torch's own errors say that it does, and not what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.masked import MaskedTensor

from custom_autograd.core.errors import KernelError
from custom_autograd.registration.registry import OpRecord
from custom_autograd.values.tensors import tensors_in
from custom_autograd.values.user_code import add_note

NOT_IMPLEMENTED = "all __torch_dispatch__ handlers returned NotImplemented"


def explain(record: OpRecord, error: Exception, values: Sequence[Any]) -> None:
    """Add what to do to an error by which a subclass refuses an op; leaves every other error alone.

    Args:
        record: the op.
        error: what a call of it raised.
        values: its arguments (Any: as the schema says).

    Raises:
        KernelError: a masked tensor is among the arguments.
    """
    text = str(error)
    if f"torch._ops.{record.overload}" not in text:
        return  # another op, within a kernel of this one
    if NOT_IMPLEMENTED in text:
        if any(isinstance(tensor, MaskedTensor) for tensor in tensors_in(values)):
            raise _masked(record) from error
        advice = "register_torch_dispatch(cls, rule) says what the op does for a class"
        add_note(error, f"{record.name}, declared at {record.declaration.location}: {advice}")


def _masked(record: OpRecord) -> KernelError:
    return KernelError(
        record.name,
        "the op is called with a masked tensor, and has no rule for those",
        expected="plain tensors",
        found="torch.masked.MaskedTensor",
        declared=record.declaration.location,
        do="call it on x.get_data(), and mask the result with x.get_mask(); or "
        "register_torch_dispatch(torch.masked.MaskedTensor, rule)",
    )
