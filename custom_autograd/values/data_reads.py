"""The error of a fake that reads a value. Loads sympy: imported when a fake raises, or leaves a number unused."""

from __future__ import annotations

from custom_autograd.core.errors import FakeUnavailable
from custom_autograd.torch_private.symbols import GraphBreakError


class FakeReadsValueError(FakeUnavailable, GraphBreakError):
    """A fake, or the reference that it is derived from, reads a value: torch.compile runs the op outside of graphs."""
