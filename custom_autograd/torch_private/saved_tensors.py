"""The hooks that pack what autograd saves, and the modes of selective activation checkpointing.

- `_C._autograd._top_saved_tensors_default_hooks`: the innermost pair; `saved_tensors_hooks` replaces it, and has no way
  to go on with the one outside.
- `_C._autograd._saved_tensors_hooks_get_disabled_error_message`: whether hooks are refused, as below transforms.
- the attributes `_checkpoint_internal` and `_user_hooks` of a function that packs: from torch 2.15 on, selective
  activation checkpointing looks for hooks of the user's past those that have the first, by the second.
- `_functorch.pyfunctorch.temporarily_clear_interpreter_stack`: hooks see tensors as they are below all transforms.

- `utils.checkpoint._CachingTorchDispatchMode`, `_CachedTorchDispatchMode`: the first saves outputs in the forward, the
  second hands them out in the recomputation; torch gives neither a public name.
- their attribute `policy_fn`: which policy an op has. Since torch 2.13 the second does not ask it.
- their attribute `storage`, `utils.checkpoint._VersionWrapper`: what was saved.
- `utils.checkpoint._is_compiling`: whether a graph is traced; there the policy is a note on the graph's nodes.
- `_python_dispatch._get_current_dispatch_mode_stack`: the modes in effect, among which may be subclasses of the two.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils import checkpoint
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from custom_autograd.torch_private.transforms import is_transforming, is_wrapped

Hooks = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]  # Any: what is kept of a tensor


def are_refused() -> bool:
    """Return True if PyTorch raises where hooks are opened: in transforms of `torch.func`, and at the level below."""
    return torch._C._autograd._saved_tensors_hooks_get_disabled_error_message() is not None


def top_hooks() -> Hooks | None:
    """Return the pair of hooks in effect in this thread, or None."""
    found: Hooks | None = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return found


def hidden_from_checkpoints(pack: Callable[[Tensor], Any], outer: Hooks | None) -> Callable[[Tensor], Any]:
    """Return a function that packs what autograd saves, and of which selective checkpointing does not warn."""

    def packed(tensor: Tensor) -> Any:  # Any: as `pack`
        return pack(tensor)

    for name, value in (("_checkpoint_internal", True), ("_user_hooks", outer)):
        setattr(packed, name, value)
    return packed


class Kept:
    """A tensor that is saved as it is, until the hooks in effect outside pack it."""

    __slots__ = ("__weakref__", "hooks", "packed")

    def __init__(self, tensor: Tensor) -> None:
        # An output would keep its own node for ever. `detach` would also cut what transforms record.
        self.packed: Any = tensor if tensor.grad_fn is None else tensor.data  # Any: what a hook makes of it
        self.hooks: Hooks | None = None

    def pack(self, hooks: Hooks) -> None:
        """Replace the tensor by what hooks make of it, at the level where they are in effect."""
        with torch.no_grad(), temporarily_clear_interpreter_stack() if is_transforming() else nullcontext():
            self.packed, self.hooks = hooks[0](self.packed), hooks

    def unpack(self) -> Tensor:
        """Return the tensor."""
        return self.packed if self.hooks is None else self.hooks[1](self.packed)


class AllKept:
    """The tensors that were saved while the caller's hooks were not in effect."""

    def __init__(self, hooks: Hooks | None) -> None:
        self._hooks = hooks
        self._saved: list[weakref.ref[Kept]] = []

    def keep(self, tensor: Tensor) -> Kept:
        """Return what a graph holds in place of a tensor."""
        kept = Kept(tensor)
        self._saved.append(weakref.ref(kept))
        return kept

    def pack(self) -> None:
        """Let the hooks that were kept out pack what a graph below all transforms still holds."""
        for one in self._saved:
            kept = one()
            if kept is not None and self._hooks is not None and not is_wrapped(kept.packed):
                kept.pack(self._hooks)


NOTHING_KEPT = AllKept(None)


@contextmanager
def without_hooks() -> Iterator[AllKept]:
    """Keep what is saved within as it is: the hooks in effect, such as those of a checkpoint, do not pack it."""
    # PyTorch does not compare the versions of what hooks have packed. So what is differentiated after the end has to be
    # given to the hooks in effect, by `pack` of the result.
    hooks = None if torch.compiler.is_dynamo_compiling() else top_hooks()
    if hooks is None or are_refused():
        yield NOTHING_KEPT
        return
    kept = AllKept(hooks)
    with torch.autograd.graph.saved_tensors_hooks(kept.keep, Kept.unpack):
        yield kept


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
