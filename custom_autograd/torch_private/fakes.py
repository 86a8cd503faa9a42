"""Fakes that ask for a size which depends on data: `torch.library.get_ctx().new_dynamic_size()`.

- `_library.fake_impl.set_ctx_getter`: what `get_ctx` returns in a context.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._library.fake_impl import set_ctx_getter


class SizeDependsOnDataError(Exception):
    """A fake asked for a size that depends on data."""


class _NoSymbols:
    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> Any:  # torch's names
        """Raise SizeDependsOnDataError."""
        raise SizeDependsOnDataError

    create_unbacked_symint = new_dynamic_size


def call_without_symbols(fake: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:  # Any: as the fake has them
    """Call a fake where no new symbol may be made.

    Raises:
        SizeDependsOnDataError: it asks for one.
    """
    with set_ctx_getter(_NoSymbols):
        return fake(*args, **kwargs)
