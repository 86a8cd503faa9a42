"""`check` over sixty operators of PyTorch, each a custom op: it passes all but those that torch has wrong."""

import warnings

import pytest
import torch
from torch.torch_version import TorchVersion

from custom_autograd import check
from slow_cases import nightly_but
from third_party.wrapped_operators import COUNT, NAMES, draw, drawn, wrapped

FOUND = {
    "mm": {"autocast": "fake kernels run without autocast, and kernels with it"},
    "nn.functional.layer_norm": {"nesting": "its second derivative by torch.func is wrong"},
    "polar": {"directional": "its gradient is zero at a radius of zero"},
    "scatter_reduce.amin": {"directional": "an excluded self halves its gradient"},
}
"""Operator -> check -> what is wrong in torch; test_bugs_of_torch.py shows each without `check`."""
if TorchVersion(torch.__version__) < (2, 14):
    FOUND["nn.functional.group_norm"] = {"nesting": "vmap of its gradient raises"}
if TorchVersion(torch.__version__) >= (2, 15):  # the first samples of cdist had p = 0 before, which hides it
    FOUND["cdist"] = {"nesting": "jacrev of it is wrong"}

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch says of some operators that they are in beta
    INFOS = drawn()


def test_seven_of_eight_pass():
    assert COUNT == len(NAMES) == 60
    assert set(NAMES) - set(INFOS) <= {"qr"}  # removed in torch 2.15
    assert FOUND.keys() <= INFOS.keys()
    assert len(FOUND) <= 5


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the operators were drawn from torch 2.13")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_operators_were_drawn_by_chance():
    assert NAMES == list(draw())


@pytest.mark.parametrize("name", nightly_but({*FOUND, *list(INFOS)[::10]}.__contains__, INFOS))
@pytest.mark.filterwarnings("ignore")
def test_every_finding_is_one_of_torch(name, fresh_compiler):
    report = check(wrapped(name, INFOS[name]))

    assert FOUND.get(name, {}).keys() == {row.check for row in report.results if row.is_finding}, str(report)
