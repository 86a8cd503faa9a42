"""Mutants whose op is right, and whose in-place or out variant is not."""

from torch import Tensor

from corpus.bases import CUBE
from corpus.mutant import Mutant, plant


def cube_in_place(x: Tensor) -> None:
    """The cube, in the place of its argument."""
    x.copy_(x**3)


def cube_out(x: Tensor, *, out: Tensor) -> None:
    """The cube, in another tensor."""
    out.copy_(x**3)


def _square_in_place(x: Tensor) -> None:
    x.copy_(x**2)


def _flat_in_place(x: Tensor) -> None:
    """As if there were no gaps between elements."""
    flat = x.as_strided((x.numel(),), (1,))
    flat.copy_(flat**3)


def _first_row_out(x: Tensor, *, out: Tensor) -> None:
    out[:1].copy_(x[:1] ** 3)


def _scratch_out(x: Tensor, *, out: Tensor) -> None:
    """By NumPy, which no version counter sees."""
    out.copy_(x**3)
    x.numpy()[...] = 0


SIBLINGS: tuple[Mutant, ...] = (
    plant(
        "parity_value",
        "variant of an op",
        "parity",
        "The kernel of the in-place variant computes another power.",
        CUBE.but(inplace=_square_in_place),
    ),
    plant(
        "parity_layout",
        "variant of an op",
        "parity",
        "The kernel of the in-place variant takes every tensor to be contiguous.",
        CUBE.but(inplace=_flat_in_place),
    ),
    plant(
        "parity_unwritten",
        "variant of an op",
        "parity",
        "The kernel of the out variant writes the first row only.",
        CUBE.but(out=_first_row_out),
    ),
    plant(
        "parity_scratch",
        "variant of an op",
        "parity",
        "The kernel of the out variant uses its argument as scratch memory.",
        CUBE.but(out=_scratch_out),
    ),
)
