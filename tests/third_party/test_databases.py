"""`check` over PyTorch's own databases of autograd.Functions and custom ops: what it finds there is true."""

import pytest
import torch
from torch.testing._internal.autograd_function_db import autograd_function_db
from torch.testing._internal.custom_op_db import custom_op_db

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.check import all_checks, check
from slow_cases import slow_but_every

LEFT_OUT = {"compile", "compiled_autograd", "compiled_transforms", "explore", "export", "recompilation"}
"""What takes long, and what finds more on a quicker machine."""
CHECKS = [row.name for row in all_checks() if row.name not in LEFT_OUT]
INFOS = {f"{kind}-{info.name}": info for kind, db in (("f", autograd_function_db), ("o", custom_op_db)) for info in db}

ZERO_TANGENT = "torch.library ops have no forward mode, and say zero"

FOUND = {
    "f-NumpyCubeNotComposableAutogradFunction": dict.fromkeys(
        ("directional", "gradcheck", "linearity"), "the backward leaves out the incoming gradient"
    ),
    "f-NumpySortAutogradFunction": dict.fromkeys(
        ("directional", "gradcheck"), "the forward returns its input unsorted, the backward is that of a sort"
    ),
    "f-CubeGenVmapAutogradFunction": dict.fromkeys(
        ("directional", "gradcheck", "linearity"), "the backward adds 6 dx for the second output, whatever comes in"
    ),
    "f-ScaleGradGenVmapAutogradFunction": dict.fromkeys(("directional", "gradcheck"), "it scales gradients on purpose"),
    "f-ZeroGradientsGenVmapAutogradFunction": dict.fromkeys(
        ("directional", "gradcheck"), "it stops gradients on purpose"
    ),
    "o-NumpyCubeCustomOp": {"forward_mode": ZERO_TANGENT},
    "o-NumpyMulCustomOp": {
        "fake": "the strides of a transposed input are not those of the real result",
        "forward_mode": ZERO_TANGENT,
    },
    "o-NumpyMulScalarCustomOp": {"forward_mode": ZERO_TANGENT},
    "o-NumpySortCustomOp": {
        "fake": "the strides of a transposed input are not those of the real result",
        "forward_mode": ZERO_TANGENT,
    },
    "o-NumpyTakeCustomOp": {"forward_mode": ZERO_TANGENT},
    "o-NumpyViewCopyCustomOp": {
        "fake": "it cannot view a transposed input, which the kernel copies",
        "forward_mode": ZERO_TANGENT,
    },
    "o-NumpyCatCustomOp": {
        "fake": "the strides of transposed inputs are not those of the real result",
        "forward_mode": ZERO_TANGENT,
        "vmap": "its rule takes one of two in_dims",
    },
    "o-NumpySplitCopyCustomOp": {"forward_mode": ZERO_TANGENT},
    "o-NumpySplitCopyWithIntCustomOp": {"forward_mode": ZERO_TANGENT},
}
"""Entry -> check -> what is wrong there; whoever reads the database's source can see it."""

OFTEN = ("f-NumpySortAutogradFunction", "o-NumpyMulCustomOp")
"""The entries with findings that `make test` looks at."""


def samples_of(info):
    """The first two samples of an entry, as the database makes them."""
    made = list(info.sample_inputs("cpu", torch.float32, requires_grad=info.supports_autograd))[:2]
    return [Sample(row.input, *row.args, **row.kwargs) for row in made]


@pytest.mark.parametrize("name", slow_but_every(16, INFOS, keep=OFTEN.__contains__))
def test_every_finding_is_known(name):
    info = INFOS[name]

    report = check(info.op, samples_of(info), checks=CHECKS)

    assert FOUND.get(name, {}).keys() == {row.check for row in report.results if row.is_finding}, str(report)
