"""`check` over entmax 1.3, a package of sparse softmaxes written as autograd.Functions: what it finds there is true."""

import pytest
import torch

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.check import all_checks, check

entmax = pytest.importorskip("entmax", reason="entmax is not installed")

LEFT_OUT = {"compile", "compiled_autograd", "compiled_transforms", "explore", "export", "recompilation"}
"""What takes long, and what finds more on a quicker machine."""
CHECKS = [row.name for row in all_checks() if row.name not in LEFT_OUT]

SECOND = "the backward cannot be differentiated twice, and is not marked once_differentiable: zeros and wrong numbers"
OUTSIDE = "a tensor is an attribute of ctx: hooks, offloading and checkpointing do not see it"

FOUND = {
    "sparsemax": {},
    "entmax15": {"second_order": SECOND},
    "sparsemax_bisect": {"saved": OUTSIDE},
    "entmax_bisect": {"saved": OUTSIDE, "second_order": SECOND},
    "normmax_bisect": {"saved": OUTSIDE},
    "budget_bisect": {"saved": OUTSIDE},
    "sparsemax_loss": {"second_order": SECOND},
    "entmax15_loss": {"second_order": SECOND},
    "entmax_bisect_loss": {"second_order": SECOND},
}
"""Function -> check -> what is wrong there."""


def samples_of(name):
    if name.endswith("_loss"):
        return lambda make: [Sample(make(3, 5), torch.tensor([0, 3, 1]))]
    if name == "budget_bisect":
        return lambda make: [Sample(make(3, 5), 2)]
    kept = ["alpha"] if name in {"entmax_bisect", "normmax_bisect"} else []  # it is to be above 1
    return lambda make: [Sample(make(3, 5), dim=-1).keeping(*kept)]


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUND)
def test_every_finding_is_known(name):
    report = check(getattr(entmax, name), samples_of(name), checks=CHECKS)

    assert FOUND[name].keys() == {row.check for row in report.results if row.is_finding}, str(report)
