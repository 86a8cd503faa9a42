"""Dropout with a seed: the words of Philox, the same bits in C++, Triton and PyTorch, and masks that come back."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tables import each
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gallery_values import (
    assert_derivatives,
    dtypes_in_layouts,
    interpreted,
    load,
    needs_compiler,
    random,
    saved_shapes,
)

gallery = load("dropout")
dropout = gallery.dropout
SEED = torch.tensor(-0x123456789ABCDEF)
SHAPES = [(2, 3, 173), (4, 128), (), (0, 3)]
OFFSETS = [0, 511, 512, 2**41 + 700]


def philox_by_hand(key: int, counter: int) -> list[int]:
    """The four words in Python's integers, line by line as in the paper."""
    words, keys = [counter & 0xFFFFFFFF, counter >> 32, 0, 0], [key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        high0, low0 = divmod(words[0] * 0xD2511F53, 2**32)
        high1, low1 = divmod(words[2] * 0xCD9E8D57, 2**32)
        words = [high1 ^ words[1] ^ keys[0], low1, high0 ^ words[3] ^ keys[1], low0]
        keys = [(keys[0] + 0x9E3779B9) % 2**32, (keys[1] + 0xBB67AE85) % 2**32]
    return words


def kept_by_hand(count: int, p: float) -> Tensor:
    """Which elements stay, element by element."""
    places = ((i // 512 * 128 + i % 128, i % 512 // 128) for i in range(count))
    key = SEED.item() % 2**64
    return torch.tensor([philox_by_hand(key, counter)[word] >= p * 2**32 for counter, word in places])


def test_words_are_those_of_random123() -> None:
    """The known answer of the authors' library for key 0 and counter 0."""
    words = gallery.philox(torch.tensor(0), 1).flatten().tolist()

    assert [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8] == words


@each("p", [0.1, 1 - 2**-40])
def test_mask_is_that_of_the_docstring(p: float) -> None:
    x = random(1038, dtype=torch.float64)
    expected = torch.where(kept_by_hand(1038, p), x / (1 - p), 0)

    torch.testing.assert_close(dropout(x, p, SEED), expected)


@each("size", [1, 173, 600])
def test_parts_with_their_offsets_drop_what_the_whole_drops(size: int) -> None:
    x = random(1300, dtype=torch.float32)
    parts = [dropout(part, 0.5, SEED, at * size) for at, part in enumerate(x.split(size))]

    assert torch.equal(dropout(x, 0.5, SEED), torch.cat(parts))


def test_gradient_of_a_part_has_the_mask_of_its_offset() -> None:
    x = random(40, dtype=torch.float64).requires_grad_()
    (grad,) = torch.autograd.grad(dropout(x, 0.5, SEED, 700).sum(), x)

    assert torch.equal(dropout(torch.ones_like(x), 0.5, SEED, 700), grad)


@needs_compiler
@dtypes_in_layouts
@each("p", [0.25, 1.0])
@each("offset", OFFSETS)
@each("shape", SHAPES)
def test_cpp_equals_reference_bit_for_bit(
    shape: tuple[int, ...], offset: int, p: float, layout: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    x = random(*shape, dtype=dtype)
    x = layout(x) if shape else x
    found = dropout(x, p, SEED, offset)

    assert found.is_contiguous()
    assert torch.equal(gallery.dropout.__wrapped__(x, p, SEED, offset), found)


@interpreted
@each("dtype", [torch.float64, torch.float32, torch.float16])
@each("p", [0.0, 0.25, 1.0])
@each("offset", OFFSETS)
def test_triton_equals_reference_bit_for_bit(offset: int, p: float, dtype: torch.dtype) -> None:
    x = random(2, 3, 173, dtype=dtype)

    assert torch.equal(dropout.__wrapped__(x, p, SEED, offset), gallery.dropout_cuda(x, p, SEED, offset))


@interpreted
def test_triton_drops_the_same_elements_in_bfloat16() -> None:
    """The interpreter truncates bfloat16, so that only the mask is the same."""
    x = random(600, dtype=torch.bfloat16)

    assert torch.equal(dropout(x, 0.5, SEED) == 0, gallery.dropout_cuda(x, 0.5, SEED, 0) == 0)


def test_share_of_kept_elements_is_one_minus_p() -> None:
    """Of a million: the standard deviation of the share is 0.0003."""
    share = dropout(torch.ones(1_000_000), 0.1, SEED).count_nonzero() / 1_000_000

    assert abs(share - 0.9) < 0.0015


def test_seeds_give_masks_that_are_independent() -> None:
    first, second = (dropout(torch.ones(100_000), 0.5, torch.tensor(seed)) > 0 for seed in (1, 2))

    assert abs((first == second).double().mean() - 0.5) < 0.01


@each("p", [0.3, 1.0])
def test_derivatives_are_those_of_a_fixed_mask(p: float) -> None:
    mask = dropout.__wrapped__(torch.ones(3, 4, dtype=torch.float64), p, SEED)

    assert_derivatives(lambda x: dropout(x, p, SEED), lambda x: mask * x, random(3, 4, dtype=torch.float64))


def test_nothing_of_the_size_of_x_is_saved() -> None:
    x = random(64, dtype=torch.float32).requires_grad_()

    assert [()] == saved_shapes(lambda: dropout(x, 0.5, SEED))


@each("use_reentrant", [False, True])
def test_checkpoint_replays_the_mask_without_the_state_of_generators(use_reentrant: bool) -> None:
    """F.dropout under the same conditions draws another mask in the backward."""

    def gradient(drop: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        x = torch.ones(1000, requires_grad=True)
        out = checkpoint(lambda x: drop(x) * x, x, use_reentrant=use_reentrant, preserve_rng_state=False)
        torch.rand(3)
        (grad,) = torch.autograd.grad(out.sum(), x) if not use_reentrant else (backward(out, x),)
        return out.detach(), grad

    out, grad = gradient(lambda x: dropout(x, 0.5, SEED))
    other_out, other_grad = gradient(lambda x: F.dropout(x, 0.5))

    assert torch.equal(2 * out, grad)
    assert not torch.equal(2 * other_out, other_grad)


def backward(out: Tensor, x: Tensor) -> Tensor:
    """Reentrant checkpoints refuse autograd.grad."""
    out.sum().backward()
    assert x.grad is not None
    return x.grad


def test_compiled_follows_the_seed() -> None:
    """One graph for all seeds: a seed is a tensor."""
    torch.compiler.reset()
    compiled = torch.compile(lambda x, seed: dropout(x, 0.5, seed).square(), fullgraph=True, backend="aot_eager")
    for seed in (torch.tensor(3), torch.tensor(4)):
        x = random(40, dtype=torch.float64).requires_grad_()
        out = compiled(x, seed)
        (grad,) = torch.autograd.grad(out.sum(), x)
        mask = dropout.__wrapped__(torch.ones_like(x), 0.5, seed)

        torch.testing.assert_close((mask * x) ** 2, out)
        torch.testing.assert_close(2 * mask**2 * x, grad)


def test_vmap_over_seeds_gives_each_its_mask() -> None:
    x, seeds = random(3, 40, dtype=torch.float64), torch.tensor([1, 2, 3])
    found = torch.vmap(lambda x, seed: dropout(x, 0.5, seed))(x, seeds)

    assert torch.equal(torch.stack([dropout(*pair) for pair in zip(x, [0.5] * 3, seeds, strict=True)]), found)


@each(
    ("x", "p", "seed", "message"),
    [
        (torch.ones(2), -0.1, SEED, r"'p' must be a probability in \[0, 1\], not -0.1"),
        (torch.ones(2), float("nan"), SEED, r"'p' must be a probability in \[0, 1\], not nan"),
        (torch.ones(2, dtype=torch.int32), 0.5, SEED, "'x' must have a floating-point dtype, not torch.int32"),
        (torch.ones(2), 0.5, SEED.int(), r"'seed' must be one int64.*found \(\), torch.int32"),
        (torch.ones(2), 0.5, torch.tensor([1, 2]), r"'seed' must be one int64.*found \(2,\), torch.int64"),
        (torch.ones(2), 0.5, torch.empty(0, dtype=torch.int64), r"found \(0,\), torch.int64"),
    ],
)
def test_bad_arguments_are_said(x: Tensor, p: float, seed: Tensor, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        dropout(x, p, seed)


def test_offset_before_the_first_element_is_refused() -> None:
    with pytest.raises(ValueError, match="'offset' must be the place of an element, not -1"):
        dropout(torch.ones(2), 0.5, SEED, -1)
