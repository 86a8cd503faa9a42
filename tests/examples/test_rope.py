"""The Triton kernel of rope, interpreted, against the reference in float64."""

import torch
from tables import each

from gallery_values import BUDGETS, assert_near, interpreted, load, random

rope, choices = load("rope"), load("launch_choices")
# Heads, positions, half: several programs in each direction, with rests; one position; one of everything; no batch;
# nothing.
SHAPES = ((2, 5, 7, 6), (3, 1, 19), (1, 1, 1), (33, 4), (2, 0, 2), (3, 2, 0), (9, 40, 64))

TABLES_AND_DTYPES = [
    *((dtype, dtype) for dtype in BUDGETS),
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.float64),
]


@interpreted
@each(("table", "dtype"), TABLES_AND_DTYPES)
@each("shape", SHAPES)
def test_rotations(shape, table, dtype):
    *leading, positions, half = shape
    x = random(*leading, positions, 2 * half, dtype=dtype)
    cos, sin = (random(positions, half, dtype=table, seed=seed) for seed in (1, 2))
    exact = rope.rope.__wrapped__(x.double(), cos.double(), sin.double())

    assert_near(rope.rope_triton(x, cos, sin), exact, dtype, 2 * BUDGETS[dtype])


@interpreted
@each("sizes", [(64, 1), (64, 4), (16, 8)])
def test_a_program_rotates_several_heads(sizes, monkeypatch):
    """Of a block of positions, which is not whole at the end, as the heads are not."""
    monkeypatch.setitem(choices.FORCED, "rope, 4 bytes", choices.Launch(sizes, 4, 1))
    x, cos, sin = random(7, 9, 24, dtype=torch.float32), *(random(9, 12, dtype=torch.float32, seed=s) for s in (1, 2))

    torch.testing.assert_close(rope.rope_triton(x, cos, sin), rope.rope.__wrapped__(x, cos, sin))
