"""Where two results differ, in one sentence: numbers that look alike are distinguished."""

import torch

from custom_autograd.verification.harness.comparison import find_difference, format_pair


def of(found, expected, dtype=torch.float64):
    return str(find_difference([torch.tensor([found], dtype=dtype)], [torch.tensor([expected], dtype=dtype)]))


def test_numbers_that_differ_have_a_ratio():
    assert "output 0[0] = 1.5, expected 3 (ratio 0.5)" == of(1.5, 3.0)


def test_numbers_that_look_alike_have_more_digits_and_a_relative_error():
    assert "output 0[0] = 29785.42, expected 29785.41 (relative error 3.4e-07)" == of(29785.42, 29785.41)


def test_numbers_whose_ratio_rounds_to_one_have_a_relative_error():
    assert "output 0[0] = 1.00001, expected 1 (relative error 1.0e-05)" == of(1.00001, 1.0)


def test_zero_has_no_ratio_and_no_relative_error():
    assert "output 0[0] = 1e-05, expected 0" == of(1e-5, 0.0)


def test_complex_numbers_that_look_alike_have_a_relative_error():
    found = of(29785.42 + 1j, 29785.41 + 1j, torch.complex128)

    assert "output 0[0] = 29785.42+1j, expected 29785.41+1j (relative error 3.4e-07)" == found


def test_numbers_that_are_not_finite_are_written_as_they_are():
    assert "nan, expected 1 (ratio nan)" == format_pair(float("nan"), 1.0)
    assert "inf, expected 0" == format_pair(float("inf"), 0.0)
