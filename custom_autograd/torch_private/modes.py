"""Modes of the dispatcher: one that sees every op, and whether AOTAutograd's is at work (found in torch 2.13).

TorchDispatchMode       the documented way to see what an op calls and allocates; its module is private, its meaning not
FunctionalTensorMode    where AOTAutograd makes graphs functional; `torch.library.triton_op` is taken apart there
FunctionalTensor.elem   what it wraps: knows the memory that it stands for, and how often that was written to
_disable_current_modes  fake tensors compute without being recorded
_get_dispatch_mode, _TorchDispatchModeKey   the modes that are torch's own stand on no public stack
"""

import torch
from torch import _C, Tensor
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

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
