"""The transforms of `torch.func` and the forward-mode levels that are active, and how to work inside one.

- `_C._are_functorch_transforms_active`, `forward_ad._current_level`, `_C._functorch.get_interpreter_stack`: no public
  question exists.
- `forward_ad._set_fwd_grad_enabled`: forward mode is switched off inside `Function.forward` and `Function.jvp`; under
  `torch.func` the levels below need it back.
- `_functorch.utils.enable_single_level_autograd_function`: lets `_SingleLevelFunction.apply` run under functorch.
- `_C._functorch.is_functorch_wrapped_tensor`, `_C._functorch.get_unwrapped`: what lies below transforms.
- `_C._functorch.is_batchedtensor`, `maybe_get_level`, `maybe_get_bdim`, `_add_batch_dim`: the batches that a tensor has
  below other transforms; a batching rule sees that of its own level only.
- `_C._functorch.set_inplace_requires_grad_allowed`: `requires_grad_()` is refused under functorch otherwise.
- `_C._is_fwd_grad_enabled`, `_C._set_fwd_grad_enabled`, `_C._VariableFunctions._unpack_dual`: the same and the question
  for a tangent, in a fifth of the time.
- `unwrap_batched`, `wrap_batched`: a batching rule sees plain tensors.

- `_C._functorch.peek_interpreter_stack`, `CVmapInterpreterPtr`: level, size and randomness of the vmap in progress.
- `_C._functorch._unwrap_batched`, `_add_batch_dim`: take a tensor out of the batch of a level, and put one into it.
- `_C._functorch.pop_dynamic_layer_stack`, `push_dynamic_layer_stack`, `_grad_increment_nesting`, `_unwrap_for_grad`,
  `_wrap_for_grad`, `_C._ForceDispatchKeyGuard`, `_dispatch_tls_local_include_set`, `_dispatch_tls_local_exclude_set`,
  `_dispatch_key_parse`: a rule runs without the level at work; see tests/transforms/test_transforms_within_rules.py.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import _C, Tensor
from torch._functorch.autograd_function import VmapInfo
from torch._functorch.utils import enable_single_level_autograd_function
from torch._functorch.vmap import unwrap_batched, wrap_batched
from torch.autograd import forward_ad

is_transforming = _C._are_functorch_transforms_active
forward_mode_enabled = forward_ad._set_fwd_grad_enabled
is_wrapped = _C._functorch.is_functorch_wrapped_tensor
single_level_enabled = enable_single_level_autograd_function


def is_forward_mode() -> bool:
    """Return True if forward mode is on: a level of `torch.autograd.forward_ad`, or a `torch.func.jvp`."""
    # A compiled graph opens its levels in C++ only, where the Python counter does not see them: so both are asked.
    return forward_ad._current_level >= 0 or has_forward_transform()


def depth() -> int:
    """Return how many `torch.func` transforms surround the current code; those above it have been left for now."""
    return len(_C._functorch.get_interpreter_stack() or ()) if is_transforming() else 0


def has_forward_transform() -> bool:
    """Return True if a `torch.func.jvp` is at work at this level or below it; those above have been left for now."""
    if not is_transforming():
        return False
    stack = _C._functorch.get_interpreter_stack() or ()
    return any(interpreter.key() == _C._functorch.TransformType.Jvp for interpreter in stack)


def primal_of(value: Any) -> Any:  # Any: a tensor, a list of tensors, or anything else that was saved
    """Return a tensor without its tangent at the level in progress; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return [primal_of(item) for item in value]
    return _unpack_dual(value, level=0)[0] if isinstance(value, Tensor) and value.layout in DUAL_LAYOUTS else value


def has_tangent(tensor: Tensor) -> bool:
    """Return True if a tensor has a tangent at the level in progress."""
    return find_tangents(tensor) > 0


def find_tangents(*tensors: Tensor | None) -> int:
    """Return 1 if a tensor has a tangent at the level in progress, 2 if such a tangent requires a gradient, else 0."""
    was_enabled, found = _C._is_fwd_grad_enabled(), 0
    _C._set_fwd_grad_enabled(True)
    try:
        for tensor in tensors:
            if tensor is None or tensor.layout not in DUAL_LAYOUTS:
                continue
            tangent = _unpack_dual(tensor, level=0)[1]
            if tangent is not None and found < 2:
                found = 2 if tangent.requires_grad else 1
        return found
    finally:
        _C._set_fwd_grad_enabled(was_enabled)


_unpack_dual = _C._VariableFunctions._unpack_dual

DUAL_LAYOUTS = (torch.strided, torch.jagged)
"""Layouts of tensors that can have a tangent; `_unpack_dual` raises for the others, which have no storage."""


def unwrapped(tensor: Tensor) -> Tensor:
    """Return the tensor below all wrappers of transforms."""
    while is_wrapped(tensor):
        tensor = _C._functorch.get_unwrapped(tensor)
    return tensor


def are_recorded(tensors: Sequence[Tensor]) -> bool:
    """Return True if any of some tensors requires a gradient below all transforms."""
    return any(map(operator.attrgetter("requires_grad"), map(unwrapped, tensors)))


def is_recorded_anywhere(tensor: Tensor) -> bool:
    """Return True if a tensor requires a gradient at any level of transforms."""
    while is_wrapped(tensor) and not tensor.requires_grad:
        tensor = _C._functorch.get_unwrapped(tensor)
    return tensor.requires_grad


def without_history(value: Any) -> Any:  # Any: a tensor, a list of tensors, or None
    """Return a tensor without what is recorded below all transforms, with its tangent: `detach` would drop that too."""
    if isinstance(value, (list, tuple)):
        return [without_history(item) for item in value]
    if not isinstance(value, Tensor) or not unwrapped(value).requires_grad:
        return value
    with torch.no_grad(), forward_mode_enabled(True):
        return value.clone()


def is_tracked(tensor: Tensor) -> bool:
    """Return True if a tensor requires a gradient, or has a tangent, at the level in progress."""
    if tensor.requires_grad and torch.is_grad_enabled():
        return True
    return is_forward_mode() and has_tangent(tensor)


# NOTE [rules run at a level of their own]
# The dispatcher runs an op's Autograd kernel in the midst of what a `torch.func.jvp` does with the call: a transform
# that a rule starts there meets a level at work, and ends in an internal assertion of functorch. A jvp rule has its
# tangents as values, and needs nothing of that level. So it runs at a new one, which records what the rule computes.
def apart_from_jvp(function: Callable[[list[Any]], list[Any]], values: list[Any]) -> list[Any]:
    """Call a function of tensors, and values of any other type (Any), at a new level."""
    # It replaces that of a `torch.func.jvp` in progress; if there is none, the function is called where it is.
    top = _C._functorch.peek_interpreter_stack() if is_transforming() else None
    if top is None or top.key() != _C._functorch.TransformType.Jvp:
        return function(values)
    level = top.level()
    del top  # it points into the stack
    with _without_level(_LEVEL):
        new = _C._functorch._grad_increment_nesting()
        try:
            found = function([_wrap(_unwrap(one, level), new) if isinstance(one, Tensor) else one for one in values])
            found = [_unwrap(one, new) if isinstance(one, Tensor) else one for one in found]
        finally:
            _C._functorch._grad_decrement_nesting()
    return [_wrap(one, level) if isinstance(one, Tensor) else one for one in found]


_wrap, _unwrap = _C._functorch._wrap_for_grad, _C._functorch._unwrap_for_grad


@contextmanager
def _without_level(keys: Any) -> Iterator[None]:  # Any: a DispatchKeySet has no public type
    """Leave the level at work, with the dispatch keys that functorch has left out for it."""
    layer = _C._functorch.pop_dynamic_layer_stack()
    try:
        included, excluded = _C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set()
        with _C._ForceDispatchKeyGuard(included - _VMAP_MODE, excluded - keys):
            yield
    finally:
        _C._functorch.push_dynamic_layer_stack(layer)


def _keys(*names: str) -> Any:  # Any: a DispatchKeySet has no public type
    return functools.reduce(operator.or_, [_C.DispatchKeySet(_C._dispatch_key_parse(name)) for name in names])


_LEVEL = _keys(
    *("FuncTorchDynamicLayerFrontMode", "FuncTorchGradWrapper", "FuncTorchBatched", "BatchedNestedTensor"),
    *("PythonTLSSnapshot", "Functionalize", "Tracer", "Conjugate", "Negative", "ZeroTensor"),
)
"""What functorch keeps the dispatcher from while a level is at work, but for autocast, which a rule runs without."""
_VMAP_LEVEL = _LEVEL | _keys("ADInplaceOrView", "AutogradFunctionality", "AutogradOther", "AutogradNestedTensor")
_VMAP_MODE = _keys("FuncTorchVmapMode")


def require_gradient(tensor: Tensor) -> Tensor:
    """Call `requires_grad_()`, also where functorch refuses it because the tensor might escape: ours does not."""
    before = _C._functorch.get_inplace_requires_grad_allowed() if is_transforming() else True
    if before:
        return tensor.requires_grad_()
    _C._functorch.set_inplace_requires_grad_allowed(True)
    try:
        return tensor.requires_grad_()
    finally:
        _C._functorch.set_inplace_requires_grad_allowed(before)


class VmapLevel:
    """The `torch.vmap` in progress, seen from a kernel at the FuncTorchBatched key.

    Attributes:
        info: `batch_size` and `randomness`, as batching rules get them.
    """

    def __init__(self) -> None:
        self.level, self.info = current_vmap()

    def unwrap(self, values: Any) -> tuple[Any, Any]:  # Any: a pytree of arguments, and the same of dimensions
        """Return plain values and, in the same structure, the dimension each is batched over (or None)."""
        return unwrap_batched(values, self.level)

    def wrap(self, values: Any, dims: Any) -> Any:  # Any: as in `unwrap`
        """Return the inverse of `unwrap`."""
        return wrap_batched(values, dims, self.level)


class Batch:
    """The batch of a `torch.vmap` level, seen from any level above it.

    Attributes:
        level: of the vmap.
        size: how many samples there are.
    """

    def __init__(self, tensor: Tensor) -> None:
        """Take the batch of a tensor that is batched."""
        self.level = _C._functorch.maybe_get_level(tensor)
        self.size = _C._functorch.get_unwrapped(tensor).shape[_C._functorch.maybe_get_bdim(tensor)]

    def index(self) -> Tensor:
        """Return the index of each sample, which is batched."""
        index: Tensor = _C._functorch._add_batch_dim(unwrapped(torch.arange(self.size, device="cpu")), 0, self.level)
        return index

    def holds(self, tensor: Tensor) -> bool:
        """Return True if a tensor is batched over it."""
        return any(one.level == self.level for one in _batches(tensor))


def innermost_batch(tensors: Sequence[Tensor]) -> Batch | None:
    """Return the batch of the innermost vmap over which any of some tensors is batched, or None."""
    return max((one for tensor in tensors for one in _batches(tensor)), key=lambda one: one.level, default=None)


def _batches(tensor: Tensor) -> Iterator[Batch]:
    while is_wrapped(tensor):
        if _C._functorch.is_batchedtensor(tensor):
            yield Batch(tensor)
        tensor = _C._functorch.get_unwrapped(tensor)


unwrap = _C._functorch._unwrap_batched
wrap = _C._functorch._add_batch_dim


def current_vmap() -> tuple[int, VmapInfo]:
    """Return the level of the vmap in progress, and what batching rules are told of it."""
    top = _C._functorch.peek_interpreter_stack()  # what is made of it points into it, and must not outlive it
    interpreter = _C._functorch.CVmapInterpreterPtr(top)
    return interpreter.level(), VmapInfo(interpreter.batchSize(), _RANDOMNESS[interpreter.randomness()])


def below_vmap() -> AbstractContextManager[None]:
    """Leave the level of the `torch.vmap` in progress: a rule may call any transform, see the note above."""
    return _without_level(_VMAP_LEVEL)


_RANDOMNESS = {
    _C._functorch.RandomnessType.Error: "error",
    _C._functorch.RandomnessType.Same: "same",
    _C._functorch.RandomnessType.Different: "different",
}
