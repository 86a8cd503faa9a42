"""What tridiagonal_solve is measured on."""

from collections.abc import Iterator
from functools import partial

import torch
from cases import Case
from gallery.tridiagonal_solve import tridiagonal_solve  # examples/ is on the path
from torch import Tensor

ATMOSPHERE = {"columns": 4096, "levels": 64}


def dense(lower: Tensor, diagonal: Tensor, upper: Tensor, rhs: Tensor) -> Tensor:
    """The matrices in full, by torch.linalg.solve, which knows neither bfloat16 nor float16."""
    wide = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in (lower, diagonal, upper, rhs)]
    off = torch.diag_embed(wide[0][:, 1:], -1) + torch.diag_embed(wide[2][:, :-1], 1)
    return torch.linalg.solve(torch.diag_embed(wide[1]) + off, wide[3]).to(rhs.dtype)


def arguments(device: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """An implicit step of diffusion: diagonally dominant matrices, one per column."""
    shape = ATMOSPHERE["columns"], ATMOSPHERE["levels"]
    lower, upper, rhs = (torch.rand(shape, device=device, dtype=dtype) for _ in range(3))
    diagonal = 1 + lower + upper
    return tuple(x.requires_grad_() for x in (-lower, diagonal, -upper, rhs))


def cases() -> Iterator[Case]:
    """Vertical diffusion in the columns of an atmosphere; the reference is Thomas's algorithm, row after row."""
    for dtype in (torch.float32, torch.bfloat16):
        yield Case(
            f"diffusion, 4096 columns, 64 levels, {str(dtype).removeprefix('torch.')}",
            tridiagonal_solve,
            tridiagonal_solve.__wrapped__,
            partial(arguments, dtype=dtype),
            {"torch.linalg.solve": dense},
            {("eager", "forward"): 1 / 1.5, ("eager", "backward"): 1 / 1.5, ("compiled", "forward"): 1.0},
        )
