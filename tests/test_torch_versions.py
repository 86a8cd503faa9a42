"""The page on PyTorch versions shows what was recorded, and what was recorded is what the page claims."""

import json
import subprocess
import sys
from pathlib import Path

from tables import each

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "torch-versions.md"
RESULTS = ROOT / "benchmarks" / "results" / "torch-versions"


def recorded():
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*/*.json"))]


@each("python", ["3.11", "3.12"])
def test_every_tested_version_is_recorded(python):
    found = [row["torch"] for row in recorded() if row["python"].startswith(f"{python}.")]

    assert ["2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"] == found


def test_every_cell_and_nesting_holds_for_our_ops():
    for row in recorded():
        for table in ("database", "nestings"):
            assert [] == row[table]["custom_autograd"]["failed"], row["torch"]


def test_the_tables_of_the_page_are_those_of_the_records():
    before = PAGE.read_text(encoding="utf-8")
    subprocess.run([sys.executable, str(ROOT / "benchmarks" / "torch_versions.py"), "--tables"], check=True)
    after = PAGE.read_text(encoding="utf-8")
    if after != before:
        PAGE.write_text(before, encoding="utf-8")

    assert before == after
