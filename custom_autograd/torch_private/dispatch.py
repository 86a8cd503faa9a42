"""The dispatcher: its keys and modes, the operators that it has, and how to get past a key.

- `_C._AutoDispatchBelowAutograd`: there is no public guard that leaves out the Autograd keys (torch 1.9 and up).
- `_C._after_autograd_keyset`, `_C._after_ADInplaceOrView_keyset`: where a kernel continues (torch 2.0 and up).
- `_C._ExcludeDispatchKeyGuard`, `_C.DispatchKeySet`: `torch.library` has no public "call me without this key".
- `_C._dispatch_tls_is_dispatch_key_excluded`, `_C._dispatch_tls_set_dispatch_key_excluded`,
  `_C._PreserveDispatchKeyGuard`: the handler of a TorchDispatchMode runs with all keys above Python left out, and
  no public function takes them in again (torch 2.11 to 2.15).
- `_C._is_any_autocast_enabled`: the public question is asked for one device type.
- `_C._dispatch_key_for_device`: the name of a device type's key; also what says that a device type does not exist.
- `Library._register_torch_dispatch_rule`, `Library.m.register_ad_inplace_or_view_fallback`, `OpOverload.redispatch`:
  what `torch.library.CustomOpDef` itself uses.
- `OpOverload._handle.redispatch_boxed`: what `OpOverload.redispatch` calls, whose own parameter `keyset` is in the way
  of an argument of that name (torch 2.15 and before).
- `_C._get_operation_overload`: `torch.ops` cannot tell an overload that does not exist from one that has no kernels.
- `OpOverload._enable_pyobj_dispatch`, `_is_pyobj_dispatcher_enabled`, `_pyobj_dispatcher`, `_cpp_dispatch_handle`: from
  torch 2.15 on the dispatcher's steps may be done on Python objects, as for ops of torch.library.custom_op: that takes
  two thirds of the time, and profilers do not see such ops.
- `OpOverload`: the type of `torch.ops.ns.name.default`, which has no public name; its cached properties, such as
  `_handle`, and their `lock` (Python 3.10 and 3.11).

TorchDispatchMode       the documented way to see what an op calls and allocates; its module is private, its meaning not
FunctionalTensorMode    where AOTAutograd makes graphs functional; `torch.library.triton_op` is taken apart there
FunctionalTensor.elem   what it wraps: knows the memory that it stands for, and how often that was written to
_disable_current_modes  fake tensors compute without being recorded
_get_dispatch_mode, _TorchDispatchModeKey   the modes that are torch's own stand on no public stack

- `_C._dispatch_get_all_op_names`: all of them, of which `torch.ops` lists only those already looked up.
- `_C._dispatch_dump`: the schema of an op, and the file that registered it.
- `_C._get_schema`: the schema of an overload, without making the overload.
- `_C._dispatch_has_kernel_for_dispatch_key`: whether an op is taken apart before autograd, and so is never seen itself.
- `OpOverloadPacket`: the type of `torch.ops.ns.name`, which has no public name; its `_qualified_op_name`.

- `OpOverload._op`: the function of C++ that `OpOverload.__call__` calls; torch 2.14 puts another one there itself.
- `OpOverload._cpp_dispatch_handle`: the function of C++, where that puts another one there (torch 2.15).

`torch.Tag.inplace` and `torch.Tag.out` came with torch 2.12.
"""

from __future__ import annotations

import functools
import operator
import os
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import _C, Tensor
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

BELOW_AUTOGRAD = _C._after_autograd_keyset
BELOW_VERSIONING = _C._after_ADInplaceOrView_keyset

below_autograd = _C._AutoDispatchBelowAutograd
KeySet = _C.DispatchKeySet
LAZY = (_C.DispatchKey.Conjugate, _C.DispatchKey.Negative, _C.DispatchKey.ZeroTensor)
TRANSFORMS = (
    _C.DispatchKey.FuncTorchDynamicLayerFrontMode,
    _C.DispatchKey.FuncTorchDynamicLayerBackMode,
    _C.DispatchKey.FuncTorchGradWrapper,
    _C.DispatchKey.FuncTorchBatched,
    _C.DispatchKey.FuncTorchVmapMode,
)


def _bits(*names: str) -> int:
    """Return the bits of those keys in a key set that this torch has."""
    keys = (getattr(_C.DispatchKey, name, None) for name in names)
    return functools.reduce(operator.or_, (KeySet(key).raw_repr() for key in keys if key is not None))


BACKENDS = ("CPU", "CUDA", "HIP", "XLA", "MPS", "IPU", "XPU", "HPU", "VE", "Lazy", "MTIA", "MAIA", "Meta")
PYTHON = _bits("Python")
"""The key of tensors that have `__torch_dispatch__`, and of its modes."""

LAYER = "FuncTorchDynamicLayerBackMode"
"""The key below which the transforms of `torch.func` further down begin: every tensor has it in them."""

NOT_PLAIN = ~(
    _bits(*BACKENDS, *(f"PrivateUse{i}" for i in (1, 2, 3)), "BackendSelect", "ADInplaceOrView", LAYER) | PYTHON
)
"""The keys, below Autograd, of tensors other than plain strided ones: sparse, lazily conjugated, functional, ..."""


def is_defined(namespace: str, name: str, overload: str) -> bool:
    """Return True if the dispatcher has an op of that name, whoever defined it."""
    return _C._get_operation_overload(f"{namespace}::{name}", overload) is not None


def without_key(key: str) -> AbstractContextManager[Any]:  # Any: the guard object
    """Leave one dispatch key out while the context is open."""
    guard: AbstractContextManager[Any] = _C._ExcludeDispatchKeyGuard(KeySet(getattr(_C.DispatchKey, key)))
    return guard


# The key as an object: from its name it is converted by way of an exception, which takes 2 us.
are_lazy_bits_ignored = functools.partial(_C._dispatch_tls_is_dispatch_key_excluded, _C.DispatchKey.Conjugate)
"""Return True if operations would read a lazily conjugated or negated tensor as if it were not."""


def _with_keys_restored(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:  # Any: as it says
    with _C._PreserveDispatchKeyGuard():
        for key in (*LAZY, *TRANSFORMS):
            _C._dispatch_tls_set_dispatch_key_excluded(key, False)
        return function(*args, **kwargs)


with_keys_restored: Callable[..., Any] = _with_keys_restored
"""Call a function in which operations conjugate and negate lazily, and `torch.func` transforms what it is given."""


def restore_keys_with(call: Callable[..., Any]) -> None:
    """Set what `with_keys_restored` is: a function of the native library that was loaded, in a tenth of the time."""
    global with_keys_restored
    with_keys_restored = call


is_any_autocast_enabled: Callable[[], bool] = _C._is_any_autocast_enabled
"""Return True if autocast is on for any device type: the public question is asked for one."""


def without_autocast(device_type: str) -> AbstractContextManager[Any]:  # Any: the guard object
    """Switch autocast off for one device type: it is on where its key is not left out."""
    return without_key(f"Autocast{key_of_device(device_type)}")


def key_of_device(device_type: str) -> str:
    """Return the dispatch key of a device type, such as 'CPU' for 'cpu'."""
    key: str = _C._dispatch_key_for_device(device_type)
    return key


def key_set(key: str) -> Any:  # Any: DispatchKeySet has no public type
    """Return the set of that one key."""
    return KeySet(getattr(_C.DispatchKey, key))


def redispatch(overload: OpOverload, keys: Any, /, *args: Any, **kwargs: Any) -> Any:  # Any: any op's call
    """Call an op at the highest of the given keys."""
    if "keyset" in kwargs:  # an argument of the op, whose name is that of a parameter of OpOverload.redispatch
        return overload._handle.redispatch_boxed(keys, *args, **kwargs)
    return overload.redispatch(keys, *args, **kwargs)


def redispatcher(overload: Any) -> Callable[..., Any]:  # Any: an overload, or what calls one; any op's call
    """Return a function (keys, *args, **kwargs) that calls an op at the highest of some keys, in C++ if it can be."""
    if not isinstance(overload, OpOverload):
        return functools.partial(redispatch, overload)
    on_objects = getattr(overload, "_pyobj_dispatcher", None)
    found: Callable[..., Any] = overload._handle.redispatch_boxed if on_objects is None else on_objects.redispatch
    return found


def autograd_keys_of(tensors: Iterable[torch.Tensor]) -> Any:  # Any: DispatchKeySet has no public type
    """Return the keys at and below Autograd of an op that writes to nothing, for a call with some plain tensors."""
    keys = functools.reduce(operator.or_, map(_C._dispatch_keys, tensors))
    return keys & _FROM_AUTOGRAD - _SKIPPED


_FROM_AUTOGRAD = BELOW_AUTOGRAD | KeySet(_C.DispatchKey.AutogradCPU)  # this functionality's bit is that of any backend
_SKIPPED = KeySet(_C.DispatchKey.ADInplaceOrView) | KeySet(_C.DispatchKey.BackendSelect)
"""Keys at which such an op has no kernel; the dispatcher leaves them out, and `redispatch` does not."""


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Return True if operations on a tensor go to the `__torch_dispatch__` of its class."""
    return bool((_C._dispatch_keys(tensor).raw_repr()) & PYTHON)


def use_python_dispatch(overload: OpOverload) -> None:
    """Let the dispatcher do its steps for an overload on Python objects, from torch 2.15 on."""
    enable = getattr(overload, "_enable_pyobj_dispatch", None)
    if enable is not None:
        enable(True)


def observed(overload: OpOverload) -> Callable[..., Any]:  # Any: any op's call
    """Return a function that calls an op so that profilers see it: where Python dispatch hides it, past that."""
    found: Callable[..., Any] = getattr(overload, "_cpp_dispatch_handle", overload)
    return found


def has_python_dispatch(overload: OpOverload) -> bool:
    """Return True if the dispatcher's steps for an overload are done on Python objects."""
    is_enabled = getattr(overload, "_is_pyobj_dispatcher_enabled", None)
    return is_enabled is not None and bool(is_enabled())


def note_views(library: torch.library.Library, name: str) -> None:
    """Register that autograd notes the output of an op as a view of its input, as `torch.library.CustomOpDef` does."""
    assert library.m is not None
    library.m.register_ad_inplace_or_view_fallback(name)


def register_torch_dispatch(library: torch.library.Library, name: str, cls: type, function: Any) -> None:
    """Register what an op does for one subclass or mode (Any: a function of (mode, func, types, args, kwargs))."""
    library._register_torch_dispatch_rule(name, cls, function)


def destroy(library: torch.library.Library) -> None:
    """Take everything back that was registered through a library handle."""
    library._destroy()


def increment_version(tensors: Any) -> None:  # Any: a tensor, None, or a list of those
    """Record in autograd that memory was written to."""
    if isinstance(tensors, (list, tuple)):
        tensors = [tensor for tensor in tensors if tensor is not None]  # torch refuses None in a list
    if tensors is not None:
        torch.autograd.graph.increment_version(tensors)


__all__ = [
    "DispatchMode", "FunctionalTensorMode", "behind", "is_functionalizing", "memory_of", "unrecorded", "writes_to",
]  # fmt: skip

unrecorded = _disable_current_modes
"""A context in which no mode sees what is called."""


class DispatchMode(TorchDispatchMode):
    """Sees every op below it in `__torch_dispatch__`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it


def is_functionalizing() -> bool:
    """Return True if AOTAutograd traces: writes become new values, and it notes whether grad mode was on for each."""
    return _C._get_dispatch_mode(_C._TorchDispatchModeKey.FUNCTIONAL) is not None


def memory_of(tensor: Tensor) -> int | None:
    """Return a number for the memory that a tensor of the mode stands for; None for any other tensor."""
    return tensor.elem.untyped_storage()._cdata if isinstance(tensor, FunctionalTensor) else None


def writes_to(tensor: Tensor) -> int:
    """Return how often the memory of a tensor of the mode was written to; 0 for any other tensor."""
    return torch._functionalize_mutation_counter(tensor.elem) if isinstance(tensor, FunctionalTensor) else 0


def behind(tensor: Tensor) -> Tensor:
    """Return the fake tensor behind a tensor of the mode; any other tensor itself."""
    return tensor.from_functional() if isinstance(tensor, FunctionalTensor) else tensor


def all_names() -> list[str]:
    """Return the names of all overloads: "ns::name" for the default one, "ns::name.overload" for the others."""
    return list(_C._dispatch_get_all_op_names())


def schema_and_file(name: str) -> tuple[str, str]:
    """Return the schema of an op, and the file, of Python or C++, that registered it; empty if there is none."""
    found = re.search(r"^schema: (.*)\ndebug: registered at (.*):\d+$", _C._dispatch_dump(name), re.MULTILINE)
    return (found[1], found[2]) if found else ("", "")


def name_of_packet(packet: OpOverloadPacket) -> str:
    """Return "ns::name"."""
    name: str = packet._qualified_op_name
    return name


def _schema_of(name: str) -> Any:  # Any: torch's schema has no public class
    operator, _, overload = name.partition(".")
    return _C._get_schema(operator, overload)


def argument_names(name: str) -> list[str]:
    """Return the names of the arguments of an overload."""
    return [argument.name for argument in _schema_of(name).arguments]


def schema_text(name: str) -> str:
    """Return the schema of an overload, with its name: `namespace::name(Tensor x) -> Tensor`."""
    return str(_schema_of(name))


def is_mutable(name: str) -> bool:
    """Return True if an overload writes to its arguments."""
    return bool(_schema_of(name).is_mutable)


def is_taken_apart(name: str) -> bool:
    """Return True if an op is a composition for autograd too, so that modes see its parts and not itself."""
    return bool(_C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"))


def function_of(overload: OpOverload) -> Callable[..., Any]:  # Any: takes and returns what the schema declares
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


HANDED_BACK: frozenset[torch.Tag] = frozenset(
    tag for name in ("inplace", "out") if (tag := getattr(torch.Tag, name, None)) is not None
)
"""The tags of ops that return what they wrote to."""


def _free_overloads() -> None:
    """Free the locks of the properties of overloads in a forked child: before Python 3.12 each has one."""
    for value in vars(OpOverload).values():
        if isinstance(value, functools.cached_property) and hasattr(value, "lock"):
            value.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_overloads)
