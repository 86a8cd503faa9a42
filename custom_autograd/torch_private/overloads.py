"""How a call of an overload reaches the dispatcher: `torch.ops.ns.op.default(...)`, as compiled graphs call ops.

- `OpOverload._op`: the function of C++ that `OpOverload.__call__` calls; torch 2.14 puts another one there itself.
- `OpOverload._cpp_dispatch_handle`: the function of C++, where that puts another one there (torch 2.15).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._ops import OpOverload


def function_of(overload: OpOverload) -> Callable[..., Any]:  # Any: takes and returns what the schema says
    """Return the function that a call of an overload runs."""
    function: Callable[..., Any] = overload._op
    return function


def seen_function_of(overload: OpOverload) -> Callable[..., Any]:  # Any: as above
    """Return the function whose calls profilers see: from torch 2.15 on, they see none that is dispatched in Python."""
    function: Callable[..., Any] = getattr(overload, "_cpp_dispatch_handle", overload._op)
    return function


def set_function(overload: OpOverload, function: Callable[..., Any]) -> None:
    """Replace it by one that returns the same, and has the same hash: up to torch 2.13 it is that of the overload."""
    overload._op = function
