"""Dispatcher tags that some supported torch versions lack.

`torch.Tag.inplace` and `torch.Tag.out` came with torch 2.12.
"""

from __future__ import annotations

import torch

HANDED_BACK: frozenset[torch.Tag] = frozenset(
    tag for name in ("inplace", "out") if (tag := getattr(torch.Tag, name, None)) is not None
)
"""The tags of ops that return what they wrote to."""
