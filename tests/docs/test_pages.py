"""What the pages are made of: escaped text, tables, check results, figures, and the public names."""

import importlib
import json
from pathlib import Path

import pytest
from expecttest import assert_expected_inline
from generate import api, gallery, markup, measurements, memory, verification
from tables import each

from custom_autograd import CustomOp, Report, Result

ROOT = Path(__file__).parents[2]

ROWS = [
    {"case": "big", "callable": "op", "mode": "forward", "minimum": 2000.0, "median": 2200.0, "op / callable": 1.0},
    {"case": "big", "callable": "eager", "mode": "forward", "minimum": 5000.0, "median": 5100.0, "op / callable": 0.4},
    {"case": "big", "callable": "op", "mode": "memory", "minimum": 2, "median": 2, "op / callable": 1, "unit": "MiB"},
    {"case": "big", "callable": "op", "mode": "bandwidth", "minimum": 9, "median": 9, "op / copy": 0.9, "unit": "GB/s"},
]
TARGET = {"case": "big", "peer": "eager", "mode": "forward", "limit": 0.667, "ratio": 0.4, "holds": True}
MISSING = {"case": "big", "callable": "triton", "mode": "forward", "reason": "there is no GPU"}
DOCUMENT = {
    "machine": {"cpu": "a CPU", "gpu": None},
    "rows": ROWS,
    "targets": [TARGET, {**TARGET, "mode": "backward", "ratio": None, "holds": None}],
    "not measured": [MISSING],
}
RESULTS = [
    Result("ns::op", "gradcheck", "a", "passed", group="derivatives"),
    Result("ns::op", "gradcheck", "b", "failed", "off by a factor | 2", group="derivatives"),
    Result("ns::op", "streams", "a", "skipped", "there is no <CUDA> in /a/long/path.h:3", group="system"),
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rope-cpu.json").write_text(json.dumps(DOCUMENT), encoding="utf-8")
    return tmp_path


def test_text_is_escaped():
    assert r"\*a\_b\* \| \<c\> \$d\$" == markup.escape("*a_b*  |\n<c> $d$")


def test_links_become_their_text():
    assert "C++, a and `b`" == markup.without_links("[C++](x.cpp), [a](b.md) and `b`")


def test_code_with_a_backtick_and_a_bar():
    assert r"`` `a` \| b ``" == markup.code("`a` | b")


def test_a_block_with_a_fence_in_it():
    assert "````text\n```\n````" == markup.block("```")


def test_a_docstring_of_the_gallery():
    docstring = "The square.\n\n    out = x²\n\nShapes: x: (n,);\nout: (n,).\nIt is even.\nSource: nobody_1 2019."

    assert_expected_inline(
        "\n--\n".join(markup.paragraphs(docstring)),
        """\
The square.
--
```text
out = x²
```
--
- **Shapes**: x: (n,); out: (n,).
- It is even.
- **Source**: nobody\\_1 2019.""",
    )


@pytest.fixture
def copied(tmp_path):
    """An op whose file imports another, which names a third; strangers lie beside them."""
    files = {
        "op.py": "import math\nfrom pair import launch\nimport shared",
        "op.cu": "",
        "op.txt": "",
        "pair.py": "SOURCE = with_name('other.cpp')\nimport op",
        "shared.py": "",
        "shared.cpp": "",
        "other.cpp": "",
        "op_more.py": "",
        "stranger.cpp": "",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return gallery.Example(tmp_path / "op.py", (), "", "")


def test_the_files_to_copy_are_those_that_are_imported_or_named_and_their_own_sources(copied):
    names = [file.name for file in copied.sources]

    assert ["op.py", "op.cu", "other.cpp", "shared.cpp", "pair.py", "shared.py"] == names


def test_the_figures_of_an_op(folder):
    text = measurements.section(folder, "rope")

    assert_expected_inline(
        text[text.index("| case") :],
        """\
| case | mode | callable | minimum | median | op / callable |
| --- | --- | --- | --- | --- | --- |
| big | forward | `op` | 2 ms | 2.2 ms | 1.00 |
|  |  | `eager` | 5 ms | 5.1 ms | 0.40 |
|  | memory | `op` | 2 MiB | 2 MiB | 1.00 |
|  | bandwidth | `op` | 9 GB/s | 9 GB/s | 0.90 |

The targets:

| case | op / callable | mode | at most | measured | holds |
| --- | --- | --- | --- | --- | --- |
| big | `eager` | forward | 0.67 | 0.40 | yes |
| big | `eager` | backward | 0.67 | - | not measured |

- Not measured: big, triton, forward, there is no GPU

Not measured on a GPU.""",
    )


def test_the_plot_shows_ratios_in_the_colour_of_the_page(folder):
    text = measurements.section(folder, "rope")

    assert (True, True, False) == ("2.50" in text, "currentColor" in text, measurements.INK in text)


def test_where_nothing_was_measured_there_is_no_section(tmp_path):
    assert measurements.section(tmp_path, "rope") == ""


def test_the_matrix_of_checks():
    assert_expected_inline(
        verification.matrix(RESULTS),
        """\
| group | check | result | samples | reason |
| --- | --- | --- | --- | --- |
| derivatives | `gradcheck` | <span class="badge failed">FAILED</span> | 1 of 2 | off by a factor \\| 2 |
| system | `streams` | <span class="badge skipped">skipped</span> | 0 of 1 | there is no \\<CUDA\\> in path.h:3 |""",
    )


def test_the_verdict_counts_checks():
    assert "1 failed, 1 skipped" == verification.verdict(RESULTS)


def test_the_verdict_of_an_op_that_the_report_does_not_have():
    report = Report(tuple(RESULTS))

    assert "not verified in this build" == verification.verdict(verification.results_of(report, "ns::other"))


@each("name", api.MODULES)
def test_every_public_name_is_in_the_reference(name):
    page = api.pages()[f"reference/{api.MODULES[name]}.md"]
    public = importlib.import_module(name).__all__

    assert [] == [each for each in public if f":: {name}.{each}\n" not in page]


def test_every_public_member_of_an_op_is_in_the_reference():
    public = [name for name in dir(CustomOp) if not name.startswith("_")]

    assert [] == [name for name in public if name not in api.members(CustomOp)]


def test_every_command_is_in_the_reference():
    page = api.pages()["reference/command-line.md"]

    assert [] == [name for name in ("check", "list", "show", "bench", "new", "mutate") if f"## {name}\n" not in page]


def test_the_page_about_memory_shows_what_policies_save():
    rows = memory.measure()
    peaks = [mib for _, mib, _ in rows]
    errors = [error for _, _, error in rows]

    assert peaks[0] > 1.3 * peaks[1] > 1.3 * peaks[2]
    assert peaks[3] < peaks[4] < peaks[0]
    assert [0, True, True, 0, 0] == [errors[0], *(0 < error < 0.01 for error in errors[1:3]), *errors[3:]]
    assert memory.MARK in (ROOT / "docs" / "how-to" / "keep-less-memory.md").read_text(encoding="utf-8")
