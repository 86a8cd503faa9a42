"""A report shows lines and findings once that differ only in their numbers, with how many there are."""

from expecttest import assert_expected_inline

from custom_autograd.verification.checks import CHECKS
from custom_autograd.verification.report import Report, Result
from custom_autograd.verification.report.text import fold_findings, fold_lines

LINES = [
    "size 3 -> 1: output 0[3, 0] = 0.27, expected 0.28 (ratio 0.98), by the reference",
    "size 3 -> 257: output 0[2, 11] = -0.219, expected -0.22 (relative error 2.2e-04), by the reference",
    "size 3 -> 1: gradient of 'x'[0] = 1, expected 0, by the reference",
    "no dimensions: output 0 = nan, expected 1e-05 (ratio nan), by the reference",
    "all sizes multiples of 8: output 0[1] = 1, expected 2 (ratio 0.5), by the reference",
]


def result(message, *, sample="sample 0", status="failed", cause=""):
    return Result("ns::f", "sizes", sample, status, message, cause=cause)


def test_lines_that_differ_in_numbers_are_shown_once_with_their_labels():
    assert_expected_inline(
        "\n".join(fold_lines(LINES)),
        """\
size 3 -> 1: output 0[3, 0] = 0.27, expected 0.28 (ratio 0.98), by the reference
  and 3 more of this kind: size 3 -> 257, no dimensions, all sizes multiples of 8
size 3 -> 1: gradient of 'x'[0] = 1, expected 0, by the reference""",
    )


def test_many_labels_are_cut():
    lines = [f"size 3 -> {size}: output 0 = {size}, expected 0, by the reference" for size in range(9)]

    cut = "  and 8 more of this kind: size 3 -> 1, size 3 -> 2, size 3 -> 3, size 3 -> 4, ..."
    assert [lines[0], cut] == fold_lines(lines)


def test_two_lines_other_words_and_lines_that_continue_others_stay():
    errors = ["TypeError: one", "ValueError: one", "KeyError: one"]
    layout = ["the shape is wrong", "  expected   (3, 4)", "  expected   (3, 5)", "  expected   (3, 6)"]

    assert LINES[:2] == fold_lines(LINES[:2])
    assert errors == fold_lines(errors)
    assert layout == fold_lines(layout)


def test_findings_that_differ_in_numbers_are_shown_once_with_the_number_of_samples():
    same = [result(LINES[0]), result(LINES[1], sample="sample 1"), result(LINES[3], sample="sample 2")]

    assert ["sample 0 and 2 more samples"] == [row.sample for row in fold_findings(same)]
    assert "FAILED ns::f: sizes, on sample 0 and 1 more sample\n" in str(Report((same[0], same[1])))
    assert 3 == len(Report((*same,)).results)


def test_findings_of_other_causes_and_exceptions_stay():
    found = [result(LINES[0]), result(LINES[0], cause="a factor 2"), result("x", status="error")]

    assert [*found, found[2]] == fold_findings([*found, found[2]])


def test_a_wrong_shape_is_reported_before_the_sizes_that_repeat_it():
    names = [check.name for check in CHECKS]

    assert names.index("contract") < names.index("sizes")
