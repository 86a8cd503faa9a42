"""Launches of Triton kernels under `torch.library.wrap_triton` (found in torch 2.13).

_library.triton.set_wrap_triton_enabled   what `torch.library.triton_op` runs its function under in eager calls: there,
                                          a launch as a node of a graph would take about a millisecond
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch._library.triton import set_wrap_triton_enabled


def launching_directly() -> AbstractContextManager[None]:
    """Let `torch.library.wrap_triton` return kernels as they are while the context is open."""
    return set_wrap_triton_enabled(False)
