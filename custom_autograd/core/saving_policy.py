"""SavingPolicy: how a tensor that is saved for a backward is kept until then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from custom_autograd.core.metadata import Metadata
from custom_autograd.frozen_dataclass import dataclass


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
