"""Results that are an input: `aliases={"out": "x"}` lets a kernel return its input as it is.

The dispatcher, and graphs that hold the op, must see new memory, so that a kernel at its key returns a copy. `op(...)`
alone, in a plain call, spares it: the result is then a view of the input, which autograd knows as one. What is written
to it reaches the input, or is refused where a gradient would be lost.
"""

from __future__ import annotations

import threading

from torch import Tensor

from custom_autograd.torch_private import guards
from custom_autograd.torch_private.functions import alias_of
from custom_autograd.torch_private.storages import may_share
from custom_autograd.torch_private.transforms import is_forward_mode, is_transforming


class _Here(threading.local):
    is_wanted = False


_here = _Here()


def want() -> None:
    """Let the kernel that runs next in this thread return an input without a copy, if the call is plain."""
    is_watched = is_transforming() or guards.torch_dispatch_modes() or guards.torch_function_modes()
    _here.is_wanted = not is_watched and not is_forward_mode()


def drop() -> None:
    """Take that back."""
    _here.is_wanted = False


def share_or_copy(_: str, tensor: Tensor) -> Tensor:
    """Return what a kernel at its dispatch key returns for an input."""
    is_wanted, _here.is_wanted = _here.is_wanted, False
    return alias_of(tensor) if is_wanted else tensor.clone()


def as_input(output: Tensor, given: Tensor, *, is_saved: bool) -> Tensor:
    """Return what a node's forward returns: the input itself for its memory, of which autograd makes a view.

    A copy, if the node saves it: what is written to the view would change what the backward reads.
    """
    if output is None or not may_share(output, given):
        return output
    return output.clone() if is_saved else given


def as_view(output: Tensor, given: Tensor) -> Tensor:
    """Return what a call that records nothing returns: a view of the input for its memory."""
    if output is None or not may_share(output, given):
        return output
    if not given.requires_grad:
        return given.view_as(given)
    view: Tensor = guards.without_grad_mode(_cut_off_view, given)
    return view


def _cut_off_view(tensor: Tensor) -> Tensor:
    """Return a view that refuses to be written to, because grad mode is off, and needs no gradient."""
    return tensor.detach().view_as(tensor)


NAMES = {"want_shared": want, "drop_shared": drop, "as_input": as_input, "as_view": as_view}
"""What generated source calls."""
