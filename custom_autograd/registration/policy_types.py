"""CastPolicy and SavingPolicy: what autocast casts an op to, and how a saved tensor is kept, as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from custom_autograd.core.metadata import Metadata
from custom_autograd.frozen_dataclass import dataclass

Cast: TypeAlias = torch.dtype | str
"""A dtype, or one of the words below."""

LOWER, FLOAT32, KEEP, PROMOTE, INPUT = "lower", "float32", "keep", "promote", "input"
INPUT_WORDS = (LOWER, FLOAT32, KEEP, PROMOTE)
OUTPUT_WORDS = (LOWER, FLOAT32, KEEP, INPUT)


@dataclass(frozen=True, slots=True)
class CastPolicy:
    """Arguments of `register_autocast` for one device type.

    Attributes:
        device_type: such as "cpu"; tensors elsewhere are left alone.
        text: what the author wrote, as `capabilities()` shows it.
        arguments: the cast of each argument that has one, by name.
        outputs: the same for the outputs that a call returns.
    """

    device_type: str
    text: str
    arguments: Mapping[str, Cast]
    outputs: Mapping[str, Cast]

    def promoted(self, dtypes: Iterable[torch.dtype]) -> torch.dtype | None:
        """Return the widest dtype of tensors that say "promote"; None if there are none."""
        widest = None
        for dtype in dtypes:
            widest = dtype if widest is None else torch.promote_types(widest, dtype)
        return widest

    def dtype_of(self, cast: Cast, other: torch.dtype | None) -> torch.dtype | None:
        """Return the dtype that a cast means now, or None if a tensor keeps its own."""
        if isinstance(cast, torch.dtype):
            return cast
        meanings = {KEEP: None, FLOAT32: torch.float32, PROMOTE: other, INPUT: other}
        return meanings[cast] if cast in meanings else torch.get_autocast_dtype(self.device_type)

    def is_castable(self, tensor: torch.Tensor) -> bool:
        """Return True if autocast may cast a tensor: of its device type, floating, not float64, as in PyTorch."""
        is_floating = tensor.is_floating_point() and tensor.dtype is not torch.float64
        return is_floating and tensor.device.type == self.device_type


@dataclass(frozen=True, slots=True)
class SavingPolicy:
    """How a tensor that is saved for a backward is kept until then.

    Attributes:
        text: the call that made it, for messages.
        pack: makes what is kept of a tensor: another tensor, a container of tensors, or anything else.
        unpack: makes the tensor again, from what was kept and the metadata of the tensor.
        changes_parameters: parameters are packed too. They stay in memory anyway, so that packing saves nothing.
    """

    text: str
    pack: Callable[[Tensor], Any]  # Any: whatever the policy keeps
    unpack: Callable[[Any, Metadata], Tensor]
    changes_parameters: bool = False

    def __repr__(self) -> str:
        return self.text
