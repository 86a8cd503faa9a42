"""The mode that sees every op of the dispatcher (found in torch 2.13).

TorchDispatchMode   the documented way to see what an op calls and allocates; its module is private, its meaning is not
"""

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """Sees every op below it in `__torch_dispatch__`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it
