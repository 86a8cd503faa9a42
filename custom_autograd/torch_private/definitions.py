"""The functions behind an op of torch.library.custom_op, which mutating exchanges for a while (found in torch 2.13).

CustomOpDef._backward_fn       the backward of register_autograd; the node looks it up whenever it runs
CustomOpDef._backend_fns       the kernels by device type, None for the default one; looked up at every call
custom_ops.OPDEFS              every definition by name: a process that did not make one finds it there
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._library.custom_ops import OPDEFS, CustomOpDef


def find_definition(name: str) -> CustomOpDef | None:
    """The definition of that qualified name, or None."""
    found: CustomOpDef | None = OPDEFS.get(name)
    return found


def names_of_definitions() -> frozenset[str]:
    """The qualified names of every definition of this process."""
    return frozenset(OPDEFS)


def backward_of(definition: CustomOpDef) -> Callable[..., Any] | None:  # Any: a user's function
    """What was given to register_autograd, or None."""
    backward: Callable[..., Any] | None = definition._backward_fn
    return backward


def set_backward(definition: CustomOpDef, function: Callable[..., Any]) -> None:
    """Puts another function in the place of the backward."""
    definition._backward_fn = function


def kernels_of(definition: CustomOpDef) -> dict[str | None, Callable[..., Any]]:
    """The kernels by device type; what is put into this dict is what runs."""
    kernels: dict[str | None, Callable[..., Any]] = definition._backend_fns
    return kernels
