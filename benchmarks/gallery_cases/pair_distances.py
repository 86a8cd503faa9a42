"""What pair_distances is measured on."""

from collections.abc import Iterator
from functools import partial

import torch
from cases import Case
from gallery.pair_distances import pair_distances  # examples/ is on the path
from torch import Tensor

WATER = {"atoms": 20_000, "neighbours": 40}
LENGTH = 58.5  # of the box, in ångström, at the density of water


def reference(positions: Tensor, pairs: Tensor, cell: Tensor | None = None) -> Tensor:
    """The formula in PyTorch operations; without care for distances of zero."""
    d = positions[pairs[:, 0]] - positions[pairs[:, 1]]
    if cell is not None:
        d = d - (d.detach() @ torch.linalg.inv(cell.detach())).round() @ cell
    return d.norm(dim=-1)


def arguments(device: str, dtype: torch.dtype, periodic: bool) -> tuple[Tensor | None, ...]:
    """Atoms in the order of space, so that neighbours lie near in memory, each with neighbours listed once."""
    positions = torch.rand(WATER["atoms"], 3, device=device) * LENGTH
    positions = positions[positions[:, 0].argsort()].to(dtype).requires_grad_()
    first = torch.arange(WATER["atoms"], device=device).repeat_interleave(WATER["neighbours"])
    second = (first + torch.randint(1, 500, first.shape, device=device)) % WATER["atoms"]
    return (
        positions,
        torch.stack((first, second), 1),
        torch.eye(3, device=device, dtype=dtype) * LENGTH if periodic else None,
    )


def cases() -> Iterator[Case]:
    """A neighbour list of liquid water, in a periodic cell and without; positions in bfloat16 are of no use."""
    for periodic in (False, True):
        yield Case(
            f"water, 20000 atoms, 800000 pairs, {'periodic' if periodic else 'open'}, float32",
            pair_distances,
            reference,
            partial(arguments, dtype=torch.float32, periodic=periodic),
            {},
            {("eager", mode): 1 / 1.5 for mode in ("forward", "backward")} | {("compiled", "forward"): 1.0},
        )
