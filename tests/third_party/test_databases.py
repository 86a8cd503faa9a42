"""`check` over PyTorch's own databases of autograd.Functions and custom ops: what it finds there is true, and listed."""

import pytest
import torch
from torch.testing._internal.autograd_function_db import autograd_function_db
from torch.testing._internal.custom_op_db import custom_op_db

from custom_autograd.checking import all_checks, check
from custom_autograd.core.samples import Sample

COMPILED = {"compile", "compiled_autograd", "compiled_transforms", "export", "recompilation"}
CHECKS = [row.name for row in all_checks() if row.name not in COMPILED]
INFOS = {f"{kind}-{info.name}": info for kind, db in (("f", autograd_function_db), ("o", custom_op_db)) for info in db}

FOUND: dict[str, dict[str, str]] = {}


def samples_of(info):
    """The first two samples of an entry, as the database makes them."""
    made = list(info.sample_inputs("cpu", torch.float32, requires_grad=info.supports_autograd))[:2]
    return [Sample(row.input, *row.args, **row.kwargs) for row in made]


@pytest.mark.parametrize("name", INFOS)
def test_every_finding_is_known(name):
    info = INFOS[name]

    report = check(info.op, samples_of(info), checks=CHECKS)

    assert FOUND.get(name, {}).keys() == {row.check for row in report.results if row.is_finding}, str(report)
