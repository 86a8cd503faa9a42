"""What the documentation says of speed is what was recorded."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def overhead_tables(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import overhead_tables

    yield overhead_tables
    sys.modules.pop("overhead_tables")


def test_the_tables_of_the_page_are_those_of_the_recorded_runs(overhead_tables):
    assert overhead_tables.page() == overhead_tables.DOCUMENT.read_text(encoding="utf-8")


def test_the_plot_of_the_page_is_of_the_recorded_runs(overhead_tables):
    plot = overhead_tables.overhead_plot
    recorded = overhead_tables.read_recorded(overhead_tables.RESULTS)

    assert f"../_static/{plot.FILE.name}" in overhead_tables.DOCUMENT.read_text(encoding="utf-8")
    assert plot.digest_of(recorded) in plot.FILE.read_text(encoding="utf-8")


def test_the_pinned_and_the_newest_torch_are_recorded(overhead_tables):
    recorded = overhead_tables.read_recorded(overhead_tables.RESULTS)
    versions = [overhead_tables.torch_of(one) for one in recorded]

    assert ["2.15.0", "2.13.0"] == versions
