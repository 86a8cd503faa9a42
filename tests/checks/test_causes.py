"""Each explanation of a difference is given where it holds, and not where another does."""

import pytest
import torch

from custom_autograd.verification.harness.causes import find_cause

TRUTH = torch.tensor([[1.0, -2.0, 3.5], [0.5, 4.0, -1.5], [2.5, -0.25, 6.0]], dtype=torch.float64)
COMPLEX = torch.complex(TRUTH, TRUTH.flip(0))
TAIL = TRUTH.clone()
TAIL.view(-1)[7:] = 0
COLUMN = TRUTH.clone()
COLUMN[:, 1] += 1
SCATTERED = TRUTH.clone()
SCATTERED[0, 0] += 1
SCATTERED[1, 2] += 2
NAN = TRUTH.clone()
NAN[1, 1] = torch.nan

CASES = {
    "sign": (-TRUTH, TRUTH, "the sign is flipped"),
    "factor": (2 * TRUTH, TRUTH, "a factor 2"),
    "near_one": (1.0005 * TRUTH, TRUTH, "a factor 1.0005"),
    "mean": (TRUTH / 5, TRUTH, "a factor 1/5: a mean where a sum belongs"),
    "imaginary": (1j * COMPLEX, COMPLEX, "a factor 0+1j"),
    "zero": (0 * TRUTH, TRUTH, "it is zero everywhere: the term is dropped"),
    "nan": (NAN, TRUTH, "1 of 9 elements are nan where a number belongs"),
    "nan_lost": (TRUTH, NAN, "nan does not propagate: 1 of 9 elements are a number"),
    "transposed": (TRUTH.mT, TRUTH, "it is transposed"),
    "reversed": (TRUTH.flip(1), TRUTH, "it is reversed along dim 1"),
    "shifted": (TRUTH.roll(1, 0), TRUTH, "it is shifted by 1 along dim 0"),
    "order": (
        TRUTH.flatten()[torch.tensor([3, 0, 4, 1, 2, 7, 5, 8, 6])].view(3, 3),
        TRUTH,
        "the right numbers stand in other places: strides or an order are ignored",
    ),
    "conjugate": (
        COMPLEX.conj().resolve_conj(),
        COMPLEX,
        "it is the complex conjugate: a conj() is missing, or there is one too many"),
    "tail": (TAIL, TRUTH, "a tail of 2 elements is unset, from element 7 on"),
    "column": (COLUMN, TRUTH, "only index 1 of dim 1 is wrong"),
    "scattered": (SCATTERED, TRUTH, "2 of 9 elements are wrong"),
    "float32": (
        TRUTH.div(3).float().double(),
        TRUTH / 3,
        "precision: an error of 3e-08 is what a step in float32 makes",
    ),
    "kink": (
        torch.nn.functional.silu(20 * TRUTH),
        20 * TRUTH.relu(),
        "only index 2 of dim 0 is wrong",
    ),
    "unreduced": (TRUTH, TRUTH.sum(0), "it is not reduced over dim 0"),
    "matrix_transposed": (TRUTH[:2].mT, TRUTH[:2], "it is transposed"),
    "unknown": (TRUTH**2, TRUTH, "8 of 9 elements are wrong"),
    "empty": (TRUTH[:0], TRUTH[:0], ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_cause(case):
    found, expected, cause = CASES[case]

    assert cause == find_cause(found, expected)
