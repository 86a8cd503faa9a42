"""The modes of selective activation checkpointing.

- `utils.checkpoint._CachingTorchDispatchMode`, `_CachedTorchDispatchMode`: the first saves outputs in the forward, the
  second hands them out in the recomputation; torch gives neither a public name.
- their attribute `policy_fn`: which policy an op has. Since torch 2.13 the second does not ask it.
- their attribute `storage`, `utils.checkpoint._VersionWrapper`: what was saved.
- `utils.checkpoint._is_compiling`: whether a graph is traced; there the policy is a note on the graph's nodes.
- `_python_dispatch._get_current_dispatch_mode_stack`: the modes in effect, among which may be subclasses of the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils import checkpoint
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

CACHING_MODES = (checkpoint._CachingTorchDispatchMode, checkpoint._CachedTorchDispatchMode)

Policy = Callable[..., Any]  # Any: (context, func, *args, **kwargs) -> a CheckpointPolicy or a bool


def caching_modes() -> list[type]:
    """Return the classes of the caching modes that are in effect."""
    return [type(mode) for mode in _get_current_dispatch_mode_stack() if isinstance(mode, CACHING_MODES)]


def saved_tensors(mode: Any) -> list[Tensor]:  # Any: a caching mode, or a subclass of one
    """Return what a caching mode has saved so far, in a forward that is not compiled."""
    if not isinstance(mode, checkpoint._CachingTorchDispatchMode) or checkpoint._is_compiling(None, (), {}):
        return []
    wrappers = tree_leaves(dict(mode.storage))
    values = [one.val for one in wrappers if isinstance(one, checkpoint._VersionWrapper)]
    return [value for value in values if isinstance(value, Tensor)]


def dispatch_with_policy(
    change: Callable[[Policy], Policy], mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
) -> Any:
    """Run what a caching mode does with an op, with another policy."""
    kwargs = kwargs or {}
    given = getattr(mode, "policy_fn", None)
    if given is None or checkpoint._is_compiling(func, args, kwargs):
        return mode.__torch_dispatch__(func, types, args, kwargs)
    mode.policy_fn = change(given)
    try:
        return mode.__torch_dispatch__(func, types, args, kwargs)
    finally:
        mode.policy_fn = given
