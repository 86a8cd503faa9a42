"""Report: what it counts, when it is ok, and what it looks like as text, JSON, Markdown and HTML."""

import dataclasses
import json
import math
import pickle

import pytest
from expecttest import assert_expected_inline
from tables import each

from custom_autograd.core.errors import CheckError
from custom_autograd.verification.report import Report, Result

PASSED = Result("ns::f", "gradcheck", "sample 0", "passed", "", 0.5)
FAILED = Result("ns::f", "fake", "sample 1", "failed", "says shape (3,)\nnot <b>(4,)</b> | {{ 7 * 7 }}")
SKIPPED = Result("ns::f", "vmap", "all samples", "skipped", "no batching rule")
ERROR = Result("ns::g", "schema", "sample 0", "error", "ValueError: no\nlast frames:\n  f.py:1 f: raise")
EXPLAINED = Result(
    "ns::f",
    "gradcheck",
    "sample 2",
    "failed",
    "gradient of 'x'[0] = 4, expected 2",
    0.25,
    "G03",
    "the factor is 2.0",
    script='text = """```"""\ncheck(f)',
    group="derivatives",
)
ACCEPTED = Result(
    "ns::f",
    "linearity",
    "sample 2",
    "skipped",
    "accepted, because of a kink at 0\ngradient of 'x'[0] = 1, expected 0",
    0.125,
    "G04",
    accepted="of a kink at 0",
    group="derivatives",
)
MIXED = Report((PASSED, FAILED, SKIPPED, SKIPPED, ERROR))


def test_report_without_findings_is_ok():
    Report((PASSED, SKIPPED)).raise_for_failures()

    assert Report((PASSED, SKIPPED)).ok


@each("result", [FAILED, ERROR])
def test_failure_and_error_are_not_ok_and_raise(result):
    with pytest.raises(CheckError, match=result.message.splitlines()[0].replace("(", r"\(").replace(")", r"\)")):
        Report((PASSED, result)).raise_for_failures()

    assert not Report((PASSED, result)).ok


def test_check_error_is_an_assertion_error():
    with pytest.raises(AssertionError):
        MIXED.raise_for_failures()


def test_text():
    assert_expected_inline(
        str(MIXED),
        """\
FAILED ns::f: fake, on sample 1
  says shape (3,)
  not <b>(4,)</b> | {{ 7 * 7 }}

ERROR ns::g: schema, on sample 0
  ValueError: no
  last frames:
    f.py:1 f: raise

not looked at
  vmap: no batching rule (ns::f)

ns::f: 1 passed, 1 failed, 2 not looked at
ns::g: 1 error
2 ops: 1 passed, 1 failed, 2 not looked at, 1 error""",
    )


def test_a_reason_is_given_once_with_the_checks_that_it_was_given_for():
    reason = {"status": "skipped", "message": "no reference is\nregistered", "cause": "", "script": ""}
    skips = [dataclasses.replace(PASSED, check=check, **reason) for check in ("sizes", "reference", "sizes")]
    report = Report((*skips, SKIPPED))

    line = "ns::f, sizes, reference: no reference is registered"
    assert "  sizes, reference: no reference is registered\n  vmap: no batching rule\n" in str(report)
    assert f"- {line}\n- ns::f, vmap: no batching rule\n" in report.to_markdown()
    assert "<td>sizes, reference</td><td>no reference is registered</td>" in report.to_html()


def test_a_reason_that_several_ops_have_is_given_once_with_their_names():
    skips = [dataclasses.replace(SKIPPED, op=op) for op in ("ns::a", "ns::b", "ns::c", "ns::d", "ns::e")]
    alone = dataclasses.replace(
        SKIPPED, op="ns::a", check="streams", message="there is no CUDA device" + 20 * " at all"
    )

    assert_expected_inline(
        str(Report((*skips, alone, PASSED))),
        """\
not looked at
  vmap: no batching rule (5 of 6 ops)
  streams: there is no CUDA device at all at all at all at all at all at all at all at all at all at all at ... (ns::a)

ns::a: 2 not looked at
ns::b: 1 not looked at
ns::c: 1 not looked at
ns::d: 1 not looked at
ns::e: 1 not looked at
ns::f: 1 passed
6 ops: 1 passed, 6 not looked at""",
    )


def test_text_gives_the_advice_of_a_check_once_and_of_a_skip_as_its_reason():
    advised = dataclasses.replace(PASSED, advice="say so with when=")
    skip = dataclasses.replace(SKIPPED, advice="no batching rule")

    assert_expected_inline(
        str(Report((advised, advised, skip))),
        """\
advice
  ns::f: gradcheck: say so with when= (2 samples)

not looked at
  vmap: no batching rule

ns::f: 2 passed, 1 not looked at""",
    )


def test_markdown_gives_the_advice_of_what_passed():
    advised = dataclasses.replace(PASSED, advice="say so with when=")

    assert "\n## advice\n\n- ns::f, gradcheck: say so with when=\n" in Report((advised, advised)).to_markdown()


def test_text_with_a_cause_a_script_and_what_is_accepted():
    assert_expected_inline(
        str(Report((EXPLAINED, ACCEPTED, SKIPPED))),
        """\
FAILED ns::f: gradcheck, on sample 2
  gradient of 'x'[0] = 4, expected 2
  why, probably: the factor is 2.0
  a script that shows it:
    text = \"\"\"```\"\"\"
    check(f)

accepted
  ns::f: linearity, on sample 2: of a kink at 0
    gradient of 'x'[0] = 1, expected 0

not looked at
  vmap: no batching rule

ns::f: 1 failed, 1 not looked at, 1 accepted""",
    )


def test_text_cuts_the_lines_of_a_script_that_write_out_many_numbers():
    long = dataclasses.replace(EXPLAINED, script=f"sample = {list(range(1000))}\ncheck(f)")

    text = str(Report((long,)))

    assert "a script that shows it (cut here; whole in what --json, --html and --junit write" in text
    assert "    sample = [0, 1, 2, " in text
    assert max(map(len, text.splitlines())) == len("    ") + 1000 + len(" ...")
    assert "999" not in text
    assert "999" in json.loads(Report((long,)).to_json())["results"][0]["script"]


def test_failures_as_text():
    with pytest.raises(CheckError) as caught:
        MIXED.raise_for_failures()

    assert_expected_inline(
        str(caught.value),
        """\
FAILED ns::f: fake, on sample 1
  says shape (3,)
  not <b>(4,)</b> | {{ 7 * 7 }}

ERROR ns::g: schema, on sample 0
  ValueError: no
  last frames:
    f.py:1 f: raise

ns::f: 1 passed, 1 failed, 2 not looked at
ns::g: 1 error
2 ops: 1 passed, 1 failed, 2 not looked at, 1 error""",
    )


def test_markdown():
    assert_expected_inline(
        MIXED.to_markdown(),
        """\
# Verification report

1 passed, 1 failed, 2 not looked at, 1 error.

| op | check | status | passed | failed | skipped | error |
|---|---|---|---|---|---|---|
| ns::f | gradcheck | passed | 1 | 0 | 0 | 0 |
| ns::f | fake | failed | 0 | 1 | 0 | 0 |
| ns::f | vmap | skipped | 0 | 0 | 2 | 0 |
| ns::g | schema | error | 0 | 0 | 0 | 1 |

## failed: ns::f, fake, on sample 1

    says shape (3,)
    not <b>(4,)</b> | {{ 7 * 7 }}

## error: ns::g, schema, on sample 0

    ValueError: no
    last frames:
      f.py:1 f: raise

## skipped

- ns::f, vmap: no batching rule
""",
    )


def test_markdown_with_a_cause_a_script_and_what_is_accepted():
    assert_expected_inline(
        Report((EXPLAINED, ACCEPTED, SKIPPED)).to_markdown(),
        """\
# Verification report

1 failed, 1 not looked at, 1 accepted.

| op | check | status | passed | failed | skipped | error |
|---|---|---|---|---|---|---|
| ns::f | gradcheck | failed | 0 | 1 | 0 | 0 |
| ns::f | linearity | skipped | 0 | 0 | 1 | 0 |
| ns::f | vmap | skipped | 0 | 0 | 1 | 0 |

## failed: ns::f, gradcheck, on sample 2

    gradient of 'x'[0] = 4, expected 2

Why, probably: the factor is 2.0

A script that shows it:

````python
text = \"\"\"```\"\"\"
check(f)
````

## accepted

- ns::f, linearity, on sample 2: of a kink at 0

## skipped

- ns::f, vmap: no batching rule
""",
    )


def test_json_has_every_field_and_the_counts():
    document = json.loads(MIXED.to_json())

    assert (1, False) == (document["format"], document["ok"])
    assert {"passed": 1, "failed": 1, "skipped": 2, "error": 1} == document["counts"]
    assert {field.name for field in dataclasses.fields(Result)} == set(document["results"][0])
    assert 0.5 == document["results"][0]["seconds"]


def test_json_has_the_sources():
    document = json.loads(Report((PASSED,), {"ns::f": "def f(): ..."}).to_json())

    assert {"ns::f": "def f(): ..."} == document["sources"]


def test_json_spells_what_json_has_no_number_for():
    measures = {"error, float32": math.inf, "error, bfloat16": math.nan, "error, float64": 0.5}
    document = json.loads(Report((dataclasses.replace(PASSED, measures=measures),)).to_json())

    assert ["inf", "nan", 0.5] == list(document["results"][0]["measures"].values())


def test_html_is_one_page_with_everything_escaped():
    page = MIXED.to_html()

    assert "&lt;b&gt;(4,)&lt;/b&gt; | {{ 7 * 7 }}" in page
    assert "<b>" not in page
    assert 1 == page.count("<script>")
    assert "http" not in page
    assert "src=" not in page
    assert "color-scheme: light dark" in page


def test_html_of_nothing_is_a_page():
    assert "nothing was checked" in Report(()).to_html()


def test_empty_report_says_so():
    assert "nothing was checked" == str(Report(()))


def test_report_pickles():
    assert MIXED == pickle.loads(pickle.dumps(MIXED))
