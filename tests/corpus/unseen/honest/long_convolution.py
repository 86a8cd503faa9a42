"""A causal convolution with a kernel as long as the signal, by FFT; float32 and float64 only."""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


def require_signals(x: Tensor, kernel: Tensor) -> None:
    if kernel.shape != x.shape[-1:]:
        raise ValueError(f"'kernel' must be as long as 'x', found {kernel.shape[0]} and {x.shape[-1]}")
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"'x' must be float32 or float64, found {x.dtype}")


@custom_op("unseen::long_convolution")
def op(x: Tensor, kernel: Tensor) -> Tensor:
    require_signals(x, kernel)
    if x.numel() == 0:  # an FFT of no signals raises
        return x.new_empty(x.shape)
    length, size = x.shape[-1], 2 * x.shape[-1] + 1
    spectrum = torch.fft.rfft(x, size) * torch.fft.rfft(kernel, size)
    return torch.fft.irfft(spectrum, size)[..., :length].contiguous()


op.register_autocast("cpu", "keep")


@op.register_fake
def _(x, kernel):
    require_signals(x, kernel)
    return x.new_empty(x.shape)


@op.register_backward
def _(grad, x, kernel):
    if x.numel() == 0:
        return {"x": grad * kernel, "kernel": (grad * x).sum_to_size(kernel.shape)}
    length, size = x.shape[-1], 2 * x.shape[-1] + 1
    incoming = torch.fft.rfft(grad, size)

    def correlate(other: Tensor) -> Tensor:
        return torch.fft.irfft(incoming * torch.fft.rfft(other, size).conj(), size)[..., :length]

    return {
        "x": lambda: correlate(kernel).contiguous(),
        "kernel": lambda: correlate(x).sum_to_size(kernel.shape),
    }


@op.register_samples
def _(make):
    if make.dtype in (torch.float32, torch.float64):
        yield Sample(make(2, 8), make(8))
        yield Sample(make(5), make(5))
    yield Sample(make(4, dtype=torch.float16), make(4, dtype=torch.float16)).raises(TypeError, match="float32 or")
