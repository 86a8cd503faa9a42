"""What a notebook shows of a report and of an op: fragments with everything escaped, and ids of their own."""

import re

from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.verification.report import Report, Result

FAILED = Result("ns::f", "fake", "<i>small</i>", "failed", "says <b>(4,)</b>", cause="a & b", script="check('<u>')")
PASSED = Result("ns::f", "vmap", "small", "passed")


@custom_op("notebooks::scale", reference=True)
def scale(x: Tensor, factor: float = 2.0) -> Tensor:
    return x * factor


def test_a_report_is_a_fragment_with_matrix_and_findings():
    fragment = Report((FAILED, PASSED))._repr_html_()

    assert "<html" not in fragment
    assert "<script" not in fragment
    assert 2 == len(re.findall(r'class="cell (?:failed|passed)"', fragment))
    assert "says &lt;b&gt;(4,)&lt;/b&gt;" in fragment
    assert "a &amp; b" in fragment
    assert "on &lt;i&gt;small&lt;/i&gt;" in fragment
    assert "check(&#39;&lt;u&gt;&#39;)" in fragment


def test_every_link_of_a_fragment_leads_to_a_place_in_it():
    fragment = Report((FAILED, PASSED))._repr_html_()

    links, ids = re.findall(r'href="#([^"]*)"', fragment), re.findall(r'id="([^"]*)"', fragment)
    assert 1 == len(links)
    assert links == ids


def test_two_reports_in_a_notebook_do_not_share_ids():
    first, second = (Report(results)._repr_html_() for results in ((FAILED,), (FAILED, PASSED)))

    assert not set(re.findall(r'id="([^"]*)"', first)) & set(re.findall(r'id="([^"]*)"', second))


def test_a_report_of_nothing_says_so():
    assert "nothing was checked" in Report(())._repr_html_()


def test_an_op_shows_name_schema_coverage_kernels_and_source():
    fragment = scale._repr_html_()

    assert "<b>notebooks::scale</b>(Tensor x, float factor=2.0) -&gt; Tensor" in fragment
    assert all(f"<td>{name}</td>" in fragment for name in scale.capabilities())
    assert "test_notebooks.py:" in fragment
    assert "<summary>Generated source</summary>" in fragment
    assert "<CustomOp" not in fragment
