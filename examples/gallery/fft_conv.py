"""Causal convolution with a filter as long as the sequence, by the fast Fourier transform, as in Hyena and S4.

    out[b, c, t] = Σ_{s <= t} filter[c, s] · u[b, c, t - s] + skip[c] · u[b, c, t]
                 = irfft(rfft(u, n) · rfft(filter, n), n)[b, c, t] + skip[c] · u[b, c, t],    n >= length + taps - 1

Dtypes: all float64, float32, bfloat16 or float16; spectra are complex128 for float64, else complex64.
The filter's spectrum is not saved: it is one transform of the 3 · batch + 2 of a backward, and twice its memory.
The length is not cut across ranks, as every output needs all positions before it: cut the channels instead.
Source: Poli et al. 2023, "Hyena Hierarchy", section 2; Gu et al. 2022, "Efficiently Modeling Long Sequences with
Structured State Spaces", section 3. The adjoint of a product with a spectrum is the product with its conjugate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op


def check_arguments(filter: Tensor, *others: Tensor | None) -> None:
    """One real dtype, and a filter with a first tap."""
    dtypes = {filter.dtype, *(x.dtype for x in others if x is not None)}
    if len(dtypes) > 1 or not filter.is_floating_point() or filter.shape[1] == 0:
        found = f"{filter.shape[1]} taps, {', '.join(map(str, dtypes))}"
        raise ValueError(f"gallery::fft_conv: expected a filter of 1 tap or more, and one real dtype; found {found}")


def spectrum(x: Tensor, n: int) -> Tensor:
    """Of a real signal padded to n, in the precision of the arithmetic."""
    return torch.fft.rfft(x.to(torch.promote_types(x.dtype, torch.float32)), n)


@custom_op(
    "gallery::fft_conv", outputs=("out",), reference=True, shapes="u: b c [l], filter: c [t], skip?: c -> out: b c [l]"
)
def fft_conv(u: Tensor, filter: Tensor, skip: Tensor | None = None) -> Tensor:
    """Convolves each channel with its filter."""
    check_arguments(filter, u, skip)
    if u.numel() == 0:  # MKL transforms nothing of size 0
        return u + filter.sum() + (0 if skip is None else skip.sum())
    n = u.shape[-1] + filter.shape[-1]
    out = torch.fft.irfft(spectrum(u, n) * spectrum(filter, n), n)[..., : u.shape[-1]]
    return (out if skip is None else out + skip.unsqueeze(1) * u).to(u.dtype).contiguous()


# u_grad[b, c, t] = Σ_s filter[c, s] · g[b, c, t + s],    filter_grad[c, s] = Σ_{b, t} g[b, c, t + s] · u[b, c, t]
@custom_op("gallery::fft_conv_grad", outputs=("u_grad", "filter_grad"), reference=True)
def fft_conv_grad(g: Tensor, u: Tensor, filter: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of fft_conv without a skip; an op of its own, so that both share the transform of g."""
    check_arguments(filter, g, u)
    if u.numel() == 0:
        return g + u + filter.sum(), filter * 0
    n = u.shape[-1] + filter.shape[-1]
    u_grad = torch.fft.irfft(spectrum(g, n) * spectrum(filter, n).conj(), n)[..., : u.shape[-1]]
    filter_grad = torch.fft.irfft((spectrum(g, n) * spectrum(u, n).conj()).sum(0), n)[..., : filter.shape[-1]]
    return u_grad.to(u.dtype).contiguous(), filter_grad.to(u.dtype).contiguous()


fft_conv_grad.register_shapes("g: b c [l], u: b c [l], filter: c [t] -> u_grad: b c [l], filter_grad: c [t]")


def fast_length(n: int) -> int:
    """The next length without prime factors above 5, up to a quarter more; a prime length is many times slower."""
    step = 1 << max(0, (n - 1).bit_length() - 4)
    return next(step * m for m in (8, 9, 10, 12, 15, 16) if step * m >= n)


def parts(u: Tensor, n: int) -> Iterator[slice]:
    """Channels in parts whose padded sequences are about 2^18 numbers per thread, 1 MB: they stay in the cache."""
    step = max(1, (torch.get_num_threads() << 18) // max(1, u.shape[0] * n))
    return (slice(first, first + step) for first in range(0, u.shape[1] if u.numel() else 0, step))


@fft_conv.register_kernel("cpu", name="chunked")
def fft_conv_cpu(u, filter, skip) -> Tensor:
    """The same a few channels at a time and in a fast length: spectra of all channels are never stored."""
    check_arguments(filter, u, skip)
    out, n = u.new_empty(u.shape), fast_length(u.shape[-1] + filter.shape[-1] - 1)
    for part in parts(u, n):
        result = torch.fft.irfft(spectrum(u[:, part], n).mul_(spectrum(filter[part], n)), n)[..., : u.shape[-1]]
        out[:, part] = result if skip is None else result.addcmul_(skip[part].to(result.dtype)[:, None], u[:, part])
    return out


@fft_conv_grad.register_kernel("cpu", name="chunked")
def fft_conv_grad_cpu(g, u, filter) -> tuple[Tensor, Tensor]:
    """The same a few channels at a time and in a fast length."""
    check_arguments(filter, g, u)
    u_grad, filter_grad = u.new_empty(u.shape), filter.new_zeros(filter.shape)
    n = fast_length(u.shape[-1] + filter.shape[-1] - 1)
    for part in parts(u, n):
        of_g = spectrum(g[:, part], n)
        of_filter_grad = spectrum(u[:, part], n).conj_physical_().mul_(of_g).sum(0)
        filter_grad[part] = torch.fft.irfft(of_filter_grad, n)[..., : filter.shape[-1]]
        u_grad[:, part] = torch.fft.irfft(of_g.mul_(spectrum(filter[part], n).conj_physical_()), n)[..., : u.shape[-1]]
    return u_grad, filter_grad


# Contiguous, which a part of an inverse transform is not.
fft_conv.register_fake(lambda u, filter, skip: u.new_empty(u.shape))
fft_conv_grad.register_fake(lambda g, u, filter: (u.new_empty(u.shape), filter.new_empty(filter.shape)))


@fft_conv.register_backward
def _(grad, u, filter, skip, needs):
    if not needs.filter:  # a correlation is a convolution backwards in time
        return {"u": lambda: fft_conv(grad.flip(-1), filter, skip).flip(-1), "skip": lambda: (grad * u).sum((0, 2))}
    u_grad, filter_grad = fft_conv_grad(grad, u, filter)
    with_skip = u_grad if skip is None or not needs.u else u_grad + skip.unsqueeze(1) * grad
    return {"u": with_skip, "filter": filter_grad, "skip": lambda: (grad * u).sum((0, 2))}


# <a, u_grad> + <b, filter_grad> is <g, conv(a, filter) + conv(u, b)>: the gradients are made of the same two ops.
@fft_conv_grad.register_backward
def _(grad_u_grad, grad_filter_grad, g, u, filter):
    on_u, on_filter = fft_conv_grad(g, grad_u_grad, grad_filter_grad)
    return {"g": lambda: fft_conv(grad_u_grad, filter) + fft_conv(u, grad_filter_grad), "u": on_u, "filter": on_filter}


@fft_conv.register_jvp
def _(tangent_u, tangent_filter, tangent_skip, u, filter, skip):
    terms = [] if tangent_u is None else [fft_conv(tangent_u, filter, skip)]
    terms += [] if tangent_filter is None else [fft_conv(u, tangent_filter)]
    terms += [] if tangent_skip is None else [tangent_skip.unsqueeze(1) * u]
    return sum(terms[1:], terms[0])


for device_type in ("cpu", "cuda"):
    fft_conv.register_autocast(device_type, "promote")


@fft_conv.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    yield Sample(make(2, 3, 7), make(3, 7), make(3))
    yield Sample(make(1, 2, 5), make(2, 19))  # more taps than positions
    yield Sample(make(0, 2, 4), make(2, 9))
    yield Sample(make(1, 2, 4), make(3, 9)).raises(ValueError, match="'filter' must be .c t. with c = 2")


@fft_conv_grad.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    yield Sample(make(2, 3, 7), make(2, 3, 7), make(3, 9))


if __name__ == "__main__":
    fft_conv_grad.check()
    fft_conv.check()
