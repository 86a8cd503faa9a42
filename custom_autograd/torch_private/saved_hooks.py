"""The hooks that pack what autograd saves.

- `_C._autograd._top_saved_tensors_default_hooks`: the innermost pair; `saved_tensors_hooks` replaces it, and has no way
  to go on with the one outside.
- `_C._autograd._saved_tensors_hooks_get_disabled_error_message`: whether hooks are refused, as below transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Hooks = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]  # Any: what is kept of a tensor


def are_refused() -> bool:
    """Return True if PyTorch raises where hooks are opened: in transforms of `torch.func`, and at the level below."""
    return torch._C._autograd._saved_tensors_hooks_get_disabled_error_message() is not None


def top_hooks() -> Hooks | None:
    """Return the pair of hooks in effect in this thread, or None."""
    found: Hooks | None = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return found


@contextmanager
def without_hooks() -> Iterator[None]:
    """Keep what is saved within as it is: the hooks in effect, such as those of a checkpoint, do not pack it."""
    if torch.compiler.is_dynamo_compiling() or are_refused() or top_hooks() is None:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(_kept, lambda kept: kept):
        yield


def _kept(tensor: Tensor) -> Tensor:
    # An output would keep its own node for ever. `detach` would cut its history below the level of a transform, too.
    return tensor if tensor.grad_fn is None else tensor.data
