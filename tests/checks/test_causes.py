"""Each explanation of a difference is given where it holds, and not where another does."""

import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tables import each

from custom_autograd.verification.harness.causes import Cause, choose_cause, find_cause, find_swap

TRUTH = torch.tensor([[1.0, -2.0, 3.5], [0.5, 4.0, -1.5], [2.5, -0.25, 6.0]], dtype=torch.float64)
COMPLEX = torch.complex(TRUTH, TRUTH.flip(0))
TAIL = TRUTH.clone()
TAIL.view(-1)[7:] = 0
COLUMN = TRUTH.clone()
COLUMN[:, 1] += 1
SCATTERED = TRUTH.clone()
SCATTERED[0, 0] += 1
SCATTERED[1, 2] += 2
LONG = torch.linspace(-3, 3, 12, dtype=torch.float64)
WITH_ZERO = TRUTH.clone()
WITH_ZERO[0, 0] = 0
WITH_INFINITY = TRUTH.clone()
WITH_INFINITY[2, 2] = -torch.inf
ONE, FIVE = torch.tensor([1.0], dtype=torch.float64), torch.tensor([5.0, 5.0], dtype=torch.float64)
NAN = TRUTH.clone()
NAN[1, 1] = torch.nan

CASES = {
    "sign": (-TRUTH, TRUTH, "the sign is flipped"),
    "factor": (2 * TRUTH, TRUTH, "a factor 2"),
    "near_one": (1.0005 * TRUTH, TRUTH, "a factor 1.0005"),
    "mean": (TRUTH / 5, TRUTH, "a factor 1/5: a mean where a sum belongs, or a factor 5 that is left out"),
    "imaginary": (1j * COMPLEX, COMPLEX, "a factor 0+1j"),
    "one_number": (1.6239 * ONE, ONE, ""),
    "one_number_near_one": (1.0005 * ONE, ONE, ""),
    "one_number_twice": (2 * ONE, ONE, "a factor 2"),
    "one_value": (FIVE + 0.7, FIVE, ""),
    "offset": (TRUTH + 1e-3, TRUTH, "a constant offset of 0.001"),
    "offset_of_zero": (WITH_ZERO - 1e-3, WITH_ZERO, "a constant offset of -0.001"),
    "offset_beside_infinity": (WITH_INFINITY + 0.5, WITH_INFINITY, "a constant offset of 0.5"),
    "complex_offset": (COMPLEX + 0.5 - 1j, COMPLEX, "a constant offset of 0.5-1j"),
    "factor_beside_infinity": (2.5 * WITH_INFINITY, WITH_INFINITY, "a factor 2.5"),
    "nearly_a_factor": (torch.stack([2 * TRUTH, 2.1 * TRUTH]), torch.stack([TRUTH, TRUTH]), ""),
    "error_of_the_small": (LONG + 1e-3 * (-LONG.abs() * 3).exp(), LONG, "4 of 12 elements are wrong"),
    "error_of_the_large": (LONG + 1e-4 * LONG**3, LONG, "10 of 12 elements are wrong"),
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
    "another_shape": (TRUTH[:2].mT + 1, TRUTH[:2], ""),
    "mask": (torch.eye(5).double()[[1, 4]], torch.eye(5).double()[[0, 2]], "4 of 10 elements are wrong"),
    "same_distribution": (
        torch.linspace(0, 1, 500).double().roll(7),
        torch.linspace(0, 1.001, 500).double(),
        "",
    ),
    "matrix_transposed": (TRUTH[:2].mT, TRUTH[:2], "it is transposed"),
    "unknown": (TRUTH**2, TRUTH, "8 of 9 elements are wrong"),
    "empty": (TRUTH[:0], TRUTH[:0], ""),
}  # fmt: skip


@each("case", CASES)
def test_cause(case):
    found, expected, cause = CASES[case]

    assert cause == find_cause(found, expected)


NUMBERS = st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=1, max_size=12)


def tensor_of(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


@st.composite
def differences(draw):
    """Two tensors that differ by a factor, an offset, both, a small error, or anything."""
    expected = tensor_of(draw(NUMBERS))
    factor, offset = draw(st.sampled_from([0, 0.5, 1, 1.0005, 2, -1])), draw(st.sampled_from([0, 1e-3, 0.7]))
    error = tensor_of(draw(st.lists(st.floats(-1, 1), min_size=len(expected), max_size=len(expected))))
    return factor * expected + offset + draw(st.sampled_from([0, 1e-9, 1e-4, 1])) * error, expected


@given(differences(), st.sampled_from([1e-7, 1e-5, 1e-2]))
@example((tensor_of([100.0001]), tensor_of([-100])), 1e-7)  # a flipped sign, but for a millionth
@example((tensor_of([1e-9, 0]), tensor_of([2.6254e-47, 9.1408e-77])), 1e-7)  # a factor of 4e37
@example((tensor_of([4e-31, 0]), tensor_of([1e-40, 7e-41])), 1e-7)  # all differences are negligible
def test_a_claim_applied_to_what_is_expected_gives_what_is_found(pair, relative):
    found, expected = pair
    cause = find_cause(found, expected, relative=relative)
    scale = float(torch.cat([found, expected]).abs().max())
    if cause.claim in ("factor", "mean"):
        torch.testing.assert_close(found, cause.number * expected, rtol=0, atol=1.2 * relative * scale + 1e-12)
    if cause.claim == "offset":
        known = max(1e-3 * abs(cause.number), relative * scale)
        torch.testing.assert_close(found, expected + cause.number.real, rtol=0, atol=known)
    if cause.claim == "precision":
        bound = 1.5e-2 * expected.abs().clamp(min=1e-3 * float(expected.abs().max()))
        assert bool(((found - expected).abs() <= bound).all())
    assert cause.claim == "" or cause.accounts_for(cause)


@given(differences(), differences())
def test_the_chosen_claim_accounts_for_every_finding(one, other):
    causes = [find_cause(*one), find_cause(*other)]
    chosen = next((cause for cause in causes if cause and cause == choose_cause(causes)), Cause())

    assert all(chosen.accounts_for(cause) for cause in causes)


def test_a_factor_of_equal_numbers_is_no_cause_where_other_ratios_differ():
    causes = [find_cause(TRUTH**2, TRUTH), find_cause(FIVE / 2, FIVE)]

    assert "" == choose_cause(causes)


@each("found", [0 * TRUTH, TRUTH.mT, TRUTH.flip(0), SCATTERED, TRUTH / 0 * 0])
def test_a_cause_of_one_finding_is_none_where_another_is_a_factor(found):
    assert "" == choose_cause([find_cause(found, TRUTH), find_cause(-0.35 * LONG + 0.1 * LONG**2, LONG)])


def test_a_gradient_that_is_reversed_is_zero_only_where_its_factor_is():
    causes = [find_cause(-factor * TRUTH, TRUTH) for factor in (0.5, 0.0, 2.0)]

    assert "a factor that differs: -0.5, 0, -2" == choose_cause(causes)


def test_factors_that_differ_from_finding_to_finding_are_listed():
    causes = [find_cause(3 * TRUTH, TRUTH), "", find_cause(2 * TRUTH, TRUTH)]

    assert "a factor that differs: 3, 2" == choose_cause(causes)


def test_a_factor_is_the_cause_where_numbers_that_show_none_allow_it():
    causes = [find_cause(1.5 * ONE, ONE), find_cause(1.5 * TRUTH, TRUTH), ""]

    assert "a factor 1.5" == choose_cause(causes)


def test_means_over_more_elements_have_one_cause():
    causes = [find_cause(TRUTH / 4, TRUTH), find_cause(TRUTH / 256, TRUTH)]

    assert choose_cause(causes).startswith("a factor 1/4: a mean")


def test_a_cause_that_compares_no_numbers_stays():
    assert "it raised" == choose_cause(["", "it raised", find_cause(TRUTH**2, TRUTH)])


def test_swapped_tensors_are_named():
    assert "a and c are swapped" == find_swap("abc", [TRUTH, LONG, -TRUTH], [-TRUTH, LONG, TRUTH], 2)


@each("found", [[TRUTH, TRUTH], [-TRUTH, -TRUTH], [2 * TRUTH, -TRUTH]])
def test_tensors_of_which_one_is_right_or_neither_is_the_others_are_not_swapped(found):
    assert "" == find_swap("ab", found, [TRUTH, -TRUTH], 1 if found[0] is TRUTH else 0)
