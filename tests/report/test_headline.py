"""A report counts what was not looked at, and warns of ops whose values nothing verifies."""

import torch
from torch import Tensor

from custom_autograd import Sample, check, custom_op
from custom_autograd.verification.report import Report, Result
from custom_autograd.verification.report.results import format_counts, format_warnings

PASSED = Result("ns::f", "schema", "sample 0", "passed")
SKIPPED = Result("ns::f", "vmap", "sample 0", "skipped", "no batching rule")
QUICK = ["reference", "kernels", "directional", "gradcheck"]


def declare(name, **options):
    @custom_op(f"headline::{name}", **options)
    def op(x: Tensor) -> Tensor:
        return x.round()

    op.register_fake(torch.empty_like)
    return op


def report_of(op):
    return check(op, [Sample(torch.randn(3, 2))], checks=QUICK)


def test_what_was_skipped_was_not_looked_at():
    assert "1 passed, 3 not looked at" == format_counts([PASSED, SKIPPED, SKIPPED, SKIPPED])
    assert "2 passed" == format_counts([PASSED, PASSED])
    assert "nothing was checked" == format_counts([])


def test_what_is_accepted_is_counted_as_such():
    accepted = Result("ns::f", "sizes", "sample 0", "skipped", "accepted", accepted="a known gap")

    assert "1 passed, 1 accepted" == format_counts([PASSED, accepted])


def test_an_op_without_reference_is_warned_of_in_its_line():
    report = report_of(declare("bare"))

    assert report.ok
    warning = "nothing verifies its values: register_reference (or reference=True), or a second kernel"
    assert [f"headline::bare: {warning}"] == format_warnings(report.results)
    assert f"headline::bare: 4 not looked at; WARNING {warning}" == str(report).splitlines()[-1]
    assert f"**Warning:** headline::bare: {warning}" in report.to_markdown()
    assert f"Warning: headline::bare: {warning}" in report.to_html()
    assert f"Warning: headline::bare: {warning}" in report._repr_html_()


def test_a_gradient_verifies_no_values():
    op = declare("differentiable")
    op.register_backward(lambda grad: grad * 0)

    assert ["headline::differentiable"] == [text.partition(": ")[0] for text in format_warnings(report_of(op).results)]


def test_an_op_with_a_reference_is_not_warned_of():
    assert [] == format_warnings(report_of(declare("referenced", reference=True)).results)


def test_an_op_with_two_kernels_is_not_warned_of():
    op = declare("served_twice")
    op.register_kernel("cpu", torch.round)

    assert [] == format_warnings(report_of(op).results)


def test_checks_that_look_at_no_values_warn_of_nothing():
    assert [] == format_warnings([PASSED, SKIPPED])
    assert "WARNING" not in str(Report((PASSED, SKIPPED)))
