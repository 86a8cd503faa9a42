"""Fakes that need data: for a size, by `torch.library.get_ctx().new_dynamic_size()`, or for a number, by `item()`.

- `_library.fake_impl.set_ctx_getter`: what `get_ctx` returns in a context.
- `FakeTensor.fake_mode`, `ShapeEnv.pending_fresh_unbacked_symbols`, `ShapeEnv.ignorable_fresh_unbacked_symbols`: the
  symbols that stand for data until outputs have them; torch.compile and torch.export refuse those that none has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch._library.fake_impl import set_ctx_getter


class SizeDependsOnDataError(Exception):
    """A fake asked for a size that depends on data."""


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
    "Cannot access data pointer of Tensor that doesn't have storage",
    ".numpy() is not supported for tensor subclasses",
    "cannot be called on meta tensors",
    "Cannot copy out of meta tensor",
    "can't convert meta device type tensor to numpy",
)
"""What torch says of a number, an array or an address that is read from a tensor without data."""


def pending_symbols(tensors: Sequence[Tensor]) -> frozenset[Any]:  # Any: a sympy.Symbol, which has no annotations
    """Return the symbols that stand for data which no output has yet, in the mode of fake tensors."""
    modes = (getattr(tensor, "fake_mode", None) for tensor in tensors)
    environment: Any = next((mode.shape_env for mode in modes if mode is not None), None)
    if environment is None:
        return frozenset()
    ignorable = environment.ignorable_fresh_unbacked_symbols
    return frozenset(environment.pending_fresh_unbacked_symbols).difference(ignorable)
