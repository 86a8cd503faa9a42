"""Fakes that need data: for a size, by `torch.library.get_ctx().new_dynamic_size()`, or for a number, by `item()`.

- `_library.fake_impl.set_ctx_getter`: what `get_ctx` returns in a context.
- `FakeTensor.fake_mode`, `ShapeEnv.pending_fresh_unbacked_symbols`, `ShapeEnv.ignorable_fresh_unbacked_symbols`: the
  symbols that stand for data until outputs have them; torch.compile and torch.export refuse those that none has.
- `FakeTensor.item_memo`: what `item()` returns; of a number of the caller, Dynamo sets it, but AOTAutograd loses it.
- `_functorch.config`: makes the address of a fake tensor an error.
- `FakeTensorMode`, `_python_dispatch._disable_current_modes`, `_C._DisableFuncTorch`: run code on metadata in the midst
  of a call, whatever surrounds it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._library.fake_impl import set_ctx_getter
from torch.utils._python_dispatch import _disable_current_modes


class SizeDependsOnDataError(Exception):
    """A fake needs a size that depends on data."""


class _NoSymbols:
    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> Any:  # torch's names
        """Raise SizeDependsOnDataError."""
        raise SizeDependsOnDataError

    create_unbacked_symint = new_dynamic_size


def call_without_symbols(fake: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:  # Any: as the fake has them
    """Call a fake where no new symbol may be made."""
    with set_ctx_getter(_NoSymbols):
        return fake(*args, **kwargs)


WITHOUT_DATA = (
    "Cannot access data pointer of Tensor",  # "that doesn't have storage", or "(e.g. FakeTensor, FunctionalTensor)"
    "Cannot access storage of ",  # the next two as well: Triton's interpreter copies what a kernel is given
    "Attempted to access the data pointer on an invalid python storage",
    'Attempted to set the storage of a tensor on device "meta"',
    ".numpy() is not supported for tensor subclasses",
    "cannot be called on meta tensors",
    "Cannot copy out of meta tensor",
    "can't convert meta device type tensor to numpy",
)
"""What torch reports of a number, an array or an address that is read from a tensor without data."""


def pending_symbols(tensors: Sequence[Tensor]) -> frozenset[Any]:  # Any: a sympy.Symbol, which has no annotations
    """Return the symbols that stand for data which no output has yet, in the mode of fake tensors."""
    modes = [tensor.fake_mode for tensor in tensors if hasattr(tensor, "fake_mode")]
    environment: Any = modes[0].shape_env if modes else None
    if environment is None:
        return frozenset()
    ignorable = environment.ignorable_fresh_unbacked_symbols
    return frozenset(environment.pending_fresh_unbacked_symbols).difference(ignorable)


@contextlib.contextmanager
def without_known_numbers(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Make `item()` of fake tensors within a number that depends on data, also where Dynamo knows what it is."""
    numbers = [(tensor, getattr(tensor, "item_memo", None)) for tensor in tensors]
    known: list[tuple[Any, Any]] = [row for row in numbers if _is_known(row[1])]  # Any: FakeTensors and symbols
    try:
        for fake, _ in known:
            fake.item_memo = None
        yield
    finally:
        for fake, number in known:
            fake.item_memo = number


def _is_known(number: Any) -> bool:  # Any: a symbol, or None
    if number is None:
        return False
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols  # loads sympy, which has made the symbol

    return not free_unbacked_symbols(number)


@contextlib.contextmanager
def fakes_alone() -> Iterator[None]:
    """Run everything within on metadata, outside of all modes and transforms: what is called is not recorded."""
    with _disable_current_modes(), torch._C._DisableFuncTorch(), new_fake_mode(allow_non_fake_inputs=True):
        yield


def new_fake_mode(**options: Any) -> Any:  # Any: those of torch, and a FakeTensorMode
    """Return a mode whose tensors raise if their address is asked for, as in torch.compile.

    By default they have the address 0, where DLPack and native code read: that ends the process.
    """
    from torch._functorch import config
    from torch._subclasses.fake_tensor import FakeTensorMode  # loads sympy, which only this needs

    with config.patch(fake_tensor_allow_unsafe_data_ptr_access=False):
        return FakeTensorMode(**options)
