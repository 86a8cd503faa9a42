"""The `torch.vmap` in progress, tensor by tensor: a fifth of the time of what works on pytrees.

- `_C._functorch.peek_interpreter_stack`, `CVmapInterpreterPtr`: level, size and randomness of the vmap in progress.
- `_C._functorch._unwrap_batched`, `_add_batch_dim`: take a tensor out of the batch of a level, and put one into it.
- `_C._ExcludeDispatchKeyGuard`, `DispatchKey.FuncTorchBatched`: a rule runs without the batching of its own level.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import _C
from torch._functorch.autograd_function import VmapInfo

unwrap = _C._functorch._unwrap_batched
wrap = _C._functorch._add_batch_dim


def current_vmap() -> tuple[int, VmapInfo]:
    """Return the level of the vmap in progress, and what batching rules are told of it."""
    top = _C._functorch.peek_interpreter_stack()  # what is made of it points into it, and must not outlive it
    interpreter = _C._functorch.CVmapInterpreterPtr(top)
    return interpreter.level(), VmapInfo(interpreter.batchSize(), _RANDOMNESS[interpreter.randomness()])


def without_batching() -> AbstractContextManager[Any]:  # Any: the guard object
    """Leave the key of vmap out while the context is open."""
    guard: AbstractContextManager[Any] = _C._ExcludeDispatchKeyGuard(_BATCHED)
    return guard


_BATCHED = _C.DispatchKeySet(_C.DispatchKey.FuncTorchBatched)
_RANDOMNESS = {
    _C._functorch.RandomnessType.Error: "error",
    _C._functorch.RandomnessType.Same: "same",
    _C._functorch.RandomnessType.Different: "different",
}
