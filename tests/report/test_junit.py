"""Report.to_junit: a suite per op, a case per check and sample, and text that XML can hold."""

from xml.etree import ElementTree

from expecttest import assert_expected_inline

from custom_autograd.verification.report import Report, Result

PASSED = Result("ns::f", "fake", "small", "passed", "", 0.5, "C01", seed=7, group="fake", measures={"bytes saved": 320})
FAILED = Result("ns::f", "gradcheck", "small", "failed", "4 < 5\nso", 0.25, "G03", "a factor", script="check(f)")
SKIPPED = Result("ns::g", "vmap", "all samples", "skipped", "no batching rule")
ACCEPTED = Result("ns::g", "linearity", "s", "skipped", "accepted, because: known\nwrong", accepted="known")
ERROR = Result("ns::g", "schema", "s", "error", "ValueError: no")


def test_a_suite_per_op_with_a_case_per_result():
    assert_expected_inline(
        Report((PASSED, FAILED, SKIPPED, ACCEPTED, ERROR)).to_junit(),
        """\
<?xml version="1.0" encoding="utf-8"?>
<testsuites name="custom_autograd" tests="5" failures="1" errors="1" skipped="2" time="0.750">
  <testsuite name="ns::f" tests="2" failures="1" errors="0" skipped="0" time="0.750">
    <testcase classname="ns::f" name="fake: small" time="0.500">
      <properties>
        <property name="code" value="C01" />
        <property name="group" value="fake" />
        <property name="seed" value="7" />
        <property name="measure: bytes saved" value="320" />
      </properties>
    </testcase>
    <testcase classname="ns::f" name="gradcheck: small" time="0.250">
      <properties>
        <property name="code" value="G03" />
        <property name="seed" value="0" />
        <property name="cause" value="a factor" />
      </properties>
      <failure type="G03" message="4 &lt; 5">4 &lt; 5
so
why, probably: a factor</failure>
      <system-out>A script that shows it:
check(f)</system-out>
    </testcase>
  </testsuite>
  <testsuite name="ns::g" tests="3" failures="0" errors="1" skipped="2" time="0.000">
    <testcase classname="ns::g" name="vmap: all samples" time="0.000">
      <properties>
        <property name="seed" value="0" />
      </properties>
      <skipped type="vmap" message="no batching rule">no batching rule</skipped>
    </testcase>
    <testcase classname="ns::g" name="linearity: s" time="0.000">
      <properties>
        <property name="seed" value="0" />
      </properties>
      <skipped type="accepted" message="known">accepted, because: known
wrong</skipped>
    </testcase>
    <testcase classname="ns::g" name="schema: s" time="0.000">
      <properties>
        <property name="seed" value="0" />
      </properties>
      <error type="schema" message="ValueError: no">ValueError: no</error>
    </testcase>
  </testsuite>
</testsuites>
""",
    )


def test_text_that_xml_cannot_hold_is_escaped():
    document = Report((Result("ns::f", "fake", "s", "failed", "\x1b[31m \x00 \ud800 ü 𝜕"),)).to_junit()

    root = ElementTree.fromstring(document.encode())
    assert "\\x1b[31m \\x00 \\ud800 ü 𝜕" == root.find(".//failure").text


def test_of_nothing_is_a_document():
    assert "0" == ElementTree.fromstring(Report(()).to_junit().encode()).get("tests")
