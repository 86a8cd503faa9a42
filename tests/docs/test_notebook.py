"""The tutorial notebook is stored without outputs, runs from beginning to end, and shows ops, reports and graphs."""

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "tutorials" / "first-op.ipynb"


def test_the_notebook_has_no_outputs():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]

    assert [] == [cell["id"] for cell in cells if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.filterwarnings("default")  # those of Jupyter's packages
def test_the_notebook_runs_and_shows_ops_reports_and_graphs(monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()

    shown = [
        output["data"]["text/html"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "text/html" in output.get("data", {})
    ]
    parts = ["<b>tutorial::softplus</b>", 'class="cell passed"', 'class="cell failed"', "<td>tutorial::softplus</td>"]
    assert [True] * 4 == [part in html for part, html in zip(parts, shown, strict=True)]
