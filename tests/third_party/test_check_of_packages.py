"""`custom-autograd check` over entmax 1.3, on the calls of a script: what it finds there is true."""

import json

import pytest

from custom_autograd.cli import main

SCRIPT = """
import torch
from entmax import *

torch.manual_seed(0)
x, y = torch.randn(4, 6, requires_grad=True), torch.tensor([0, 5, 2, 2])
for f in (sparsemax, entmax15, sparsemax_bisect, entmax_bisect, normmax_bisect):
    f(x, dim=-1).square().sum().backward()
budget_bisect(x, budget=2, dim=-1).square().sum().backward()
for loss in (SparsemaxLoss, Entmax15Loss, SparsemaxBisectLoss, EntmaxBisectLoss):
    loss()(x, y).backward()
"""

FOUND = {
    ("Entmax15Function", "second_order"),
    ("EntmaxBisectFunction", "second_order"),
    ("EntmaxBisectFunction", "saved"),
    ("NormmaxBisectFunction", "saved"),
    ("BudgetBisectFunction", "saved"),
    ("SparsemaxBisectFunction", "saved"),
    ("SparsemaxLossFunction", "second_order"),
    ("SparsemaxBisectLossFunction", "second_order"),
    ("Entmax15LossFunction", "second_order"),
    ("EntmaxBisectLossFunction", "second_order"),
}
"""Function, check; docs/explanation/what-check-found.md has them."""


@pytest.mark.slow
@pytest.mark.nightly
def test_every_finding_is_known(tmp_path, monkeypatch):
    pytest.importorskip("entmax", reason="the package is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    checks = "contract,determinism,directional,gradcheck,saved,second_order"

    main(["check", "entmax", "--record", "script.py", "--checks", checks, "--dtype", "float64", "--json", "r.json"])

    results = json.loads((tmp_path / "r.json").read_text())["results"]
    assert FOUND == {(row["op"], row["check"]) for row in results if row["status"] in ("failed", "error")}
    assert {"_GenericLossFunction", "NormmaxBisectLossFunction"} == {
        row["op"] for row in results if row["sample"] == "no sample"
    }
