"""The generated kernel at the dispatch key of each backend, and what capabilities put around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from custom_autograd.core.lazy import PerFunction
from custom_autograd.execution import kernel_call
from custom_autograd.execution.call import share_or_copy, write_kernel
from custom_autograd.execution.kernel_call import are_new
from custom_autograd.execution.source import Source, values_of
from custom_autograd.registration.capability import Capability, overriding
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private import guards
from custom_autograd.torch_private.transforms import is_transforming
from custom_autograd.values.kernel_results import ResultReader


def shared_names() -> dict[str, Any]:
    """Return the values by name (Any: functions and modules)."""
    return {
        "torch": torch,
        "Tensor": Tensor,
        "forward_ad": forward_ad,
        "is_transforming": is_transforming,
        "is_grad_enabled": torch.is_grad_enabled,
        "set_grad_enabled": guards.set_grad_enabled,
        "are_new": are_new,
    }


Function = Callable[..., Any]  # Any: takes and returns what the schema declares


def kernel_code(
    record: OpRecord, watch: Callable[[Function], Function] | None, *, is_checked: bool
) -> tuple[str, PerFunction]:
    """Return the kernel of an op for all backends: its text, and what makes it of the function that serves one.

    Args:
        record: the op.
        watch: makes a function one whose call is checked in full, for the first call of each kind; None for none.
        is_checked: results are looked at.
    """
    source = Source.of(record.declaration)
    write_kernel(source, record.declaration.schema, is_checked=is_checked, is_watched=watch is not None)
    helpers = {
        **shared_names(),
        **values_of(record.declaration),
        "watch": watch,
        "road": record.road,
        **kernel_call.helpers(record),
        "read_result": ResultReader(record.declaration, record.kernels.describe, share=share_or_copy).read,
    }
    return source.text, PerFunction(source.compiled(f"{record.name} kernel", helpers)["kernel_of"])


def around_kernels(record: OpRecord, function: Function) -> Function:
    """Return what runs in place of a kernel: what capabilities put around it."""
    for capability in overriding(record.capabilities, Capability.around_kernel):
        function = capability.around_kernel(record, function)
    return function
