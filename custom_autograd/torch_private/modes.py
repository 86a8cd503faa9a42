"""Modes of the dispatcher: one that sees every op, and whether AOTAutograd's is at work (found in torch 2.13).

TorchDispatchMode       the documented way to see what an op calls and allocates; its module is private, its meaning not
FunctionalTensorMode    where AOTAutograd makes graphs functional; `torch.library.triton_op` is taken apart there
_get_dispatch_mode, _TorchDispatchModeKey   the modes that are torch's own stand on no public stack
"""

from torch import _C
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["DispatchMode", "FunctionalTensorMode", "is_functionalizing"]


class DispatchMode(TorchDispatchMode):
    """Sees every op below it in `__torch_dispatch__`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it


def is_functionalizing() -> bool:
    """Return True if AOTAutograd traces: writes become new values, and it notes whether grad mode was on for each."""
    return _C._get_dispatch_mode(_C._TorchDispatchModeKey.FUNCTIONAL) is not None
