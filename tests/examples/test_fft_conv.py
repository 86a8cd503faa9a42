"""fft_conv against the direct convolution in float64: values, derivatives to second order, tangents, refusals."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tables import each
from torch import Tensor

from gallery_values import BUDGETS, assert_derivatives, assert_near, dtypes, dtypes_in_layouts, load, random

conv = load("fft_conv")
fft_conv = conv.fft_conv

# Batch, channels, length and taps: a filter as long as the sequence, longer, shorter, one tap, nothing.
SIZES = [(2, 3, 16, 16), (1, 2, 5, 19), (2, 2, 33, 4), (2, 1, 1, 1), (0, 2, 4, 3), (2, 0, 4, 3), (2, 3, 0, 4)]


def direct(u: Tensor, filter: Tensor, skip: Tensor | None = None) -> Tensor:
    """By conv1d with a group per channel, which correlates."""
    padded = F.pad(u, (filter.shape[-1] - 1, 0))
    out = F.conv1d(padded, filter.flip(-1).unsqueeze(1), groups=u.shape[1]) if u.numel() else u
    return out if skip is None else out + skip.unsqueeze(1) * u


def made(batch: int, channels: int, length: int, taps: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    shapes = ((batch, channels, length), (channels, taps), (channels,))
    return tuple(random(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes))


def squares(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    return function(*inputs).square().sum()


@dtypes_in_layouts
@each("sizes", SIZES)
def test_values(sizes: tuple[int, int, int, int], layout: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    u, filter, skip = (layout(x) for x in made(*sizes, dtype=dtype))

    found = fft_conv(u, filter, skip)

    assert found.is_contiguous()
    # A transform is as exact as the largest numbers of its row allow, and these are up to 10.
    assert_near(found, direct(u.double(), filter.double(), skip.double()), dtype, budget=8 * BUDGETS[dtype])
    assert_near(fft_conv(u, filter), direct(u.double(), filter.double()), dtype, budget=8 * BUDGETS[dtype])


@dtypes
@each("sizes", SIZES)
def test_gradient_kernel(sizes: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    u, filter, _ = made(*sizes, dtype=dtype)
    g = random(*u.shape, dtype=dtype, seed=4)
    found = conv.fft_conv_grad(g, u, filter)
    inputs = [x.double().requires_grad_() for x in (u, filter)]
    exact = torch.autograd.grad(direct(*inputs), inputs, g.double(), allow_unused=True, materialize_grads=True)

    for gradient, expected in zip(found, exact, strict=True):
        assert_near(gradient, expected, dtype, budget=16 * BUDGETS[dtype])


def test_parts_of_channels() -> None:
    """More channels than a part holds, and a last part that is not full; the tests have one thread."""
    u, filter, skip = made(2, 5, 40_000, 3)

    assert [slice(0, 3), slice(3, 6)] == list(conv.parts(u, conv.fast_length(40_002)))
    torch.testing.assert_close(fft_conv(u, filter, skip), direct(u, filter, skip))
    found = conv.fft_conv_grad(u, u.cos(), filter)
    torch.testing.assert_close(found, conv.fft_conv_grad.__wrapped__(u, u.cos(), filter))


@each("count", [2, 3])
def test_derivatives(count: int) -> None:
    """With respect to all, without and with skip: they go through the gradient's own gradient."""
    assert_derivatives(fft_conv, direct, *made(2, 2, 4, 3)[:count])


def test_third_derivative() -> None:
    """The two ops are made of each other, so there is no order at which derivatives end."""
    u, filter, _ = made(1, 1, 3, 3)

    def third(function: Callable[..., Tensor]) -> Tensor:
        def cubes(filter: Tensor) -> Tensor:
            return function(u, filter).pow(3).sum()

        return torch.func.jacrev(torch.func.hessian(cubes))(filter)

    torch.testing.assert_close(third(fft_conv), third(direct))


@each("frozen", ["u", "filter", "skip"])
def test_gradients_where_one_input_is_frozen(frozen: str) -> None:
    """Without a gradient of the filter the rule convolves backwards in time."""
    named = dict(zip(("u", "filter", "skip"), made(2, 3, 5, 4), strict=True))
    wanted = [x.requires_grad_() for name, x in named.items() if name != frozen]

    found = torch.autograd.grad(squares(fft_conv, *named.values()), wanted)

    torch.testing.assert_close(found, torch.autograd.grad(squares(direct, *named.values()), wanted))


def test_output_is_causal() -> None:
    """What comes later has no influence, as far as a transform is exact."""
    u, filter, _ = made(1, 1, 12, 12)
    later = u.clone()
    later[..., 7:] = 0

    difference = (fft_conv(u, filter) - fft_conv(later, filter)).abs().amax((0, 1))

    assert difference[:7].max() < 1e-14
    assert difference[7] > 0.1


def test_fast_lengths() -> None:
    """Each is large enough, at most a quarter longer, and a product of small primes."""
    for n in (*range(8, 200), 4095, 4097, 10007):
        length = rest = conv.fast_length(n)
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime

        assert rest == 1
        assert n <= length <= max(8, 1.25 * n)


ONES = torch.ones
REFUSED = {
    "dimensions": (ONES(3, 4), ONES(3, 4)),
    "channels": (ONES(1, 2, 4), ONES(3, 4)),
    "no taps": (ONES(1, 2, 4), ONES(2, 0)),
    "skip": (ONES(1, 2, 4), ONES(2, 4), ONES(3)),
    "dtype": (ONES(1, 2, 4), ONES(2, 4).double()),
    "integers": (ONES(1, 2, 4).long(), ONES(2, 4).long()),
    "complex": (ONES(1, 2, 4) + 1j, ONES(2, 4) + 1j),
}


@each("arguments", REFUSED.values())
def test_refused(arguments: tuple[Tensor, ...]) -> None:
    with pytest.raises(ValueError, match=r"gallery::fft_conv: ('\w+' must be \(|expected a filter of 1 tap or more)"):
        fft_conv(*arguments)


def test_gradient_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'u' must be \(b c l\) with l = 1"):
        conv.fft_conv_grad(ONES(1, 2, 1), ONES(1, 2, 4), ONES(2, 4))
