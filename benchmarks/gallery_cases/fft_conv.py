"""What fft_conv is measured on."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from cases import Case
from gallery.fft_conv import fft_conv  # examples/ is on the path
from torch import Tensor

HYENA = {"batch": 2, "channels": 768, "length": 2048}


def reference(u: Tensor, filter: Tensor, skip: Tensor) -> Tensor:
    """As in the code of Hyena: padded to twice the length, all channels at once."""
    n = 2 * u.shape[-1]
    product = torch.fft.rfft(u.float(), n) * torch.fft.rfft(filter.float(), n)
    return (torch.fft.irfft(product, n)[..., : u.shape[-1]] + u * skip.unsqueeze(-1)).to(u.dtype)


def direct(u: Tensor, filter: Tensor, skip: Tensor) -> Tensor:
    """conv1d with a group per channel."""
    padded = F.pad(u, (filter.shape[-1] - 1, 0))
    return F.conv1d(padded, filter.flip(-1).unsqueeze(1), groups=u.shape[1]) + u * skip.unsqueeze(-1)


def arguments(device: str, dtype: torch.dtype, taps: int) -> tuple[Tensor, ...]:
    """One operator's input, filters and skips."""
    batch, channels, length = HYENA.values()
    shapes = (batch, channels, length), (channels, taps), (channels,)
    return tuple(torch.randn(shape, device=device, dtype=dtype).requires_grad_() for shape in shapes)


def cases() -> Iterator[Case]:
    """Hyena small with its long filters, and with filters of 128 taps, which conv1d can still be asked for."""
    target = {
        (peer, mode): r for peer, r in (("eager", 1 / 1.5), ("compiled", 1.0)) for mode in ("forward", "backward")
    }
    for taps, peers in ((HYENA["length"], {}), (128, {"conv1d": direct})):
        for dtype in (torch.float32, torch.bfloat16):
            yield Case(
                f"Hyena, 768 channels, 2048 positions, {taps} taps, {str(dtype).removeprefix('torch.')}",
                fft_conv,
                reference,
                partial(arguments, dtype=dtype, taps=taps),
                peers,
                target | {("eager", "memory"): 1.0},
            )
