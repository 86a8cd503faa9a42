"""`check` over a sample of PyTorch's own differentiable operators, by their OpInfos: what it finds is true."""

import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from custom_autograd.checking import all_checks, check
from custom_autograd.core.samples import Sample

LEFT_OUT = {"compile", "compiled_autograd", "compiled_transforms", "export", "recompilation", "threads"}
CHECKS = [row.name for row in all_checks() if row.name not in LEFT_OUT]
SMALL = 300  # elements in a sample: a full Jacobian of more takes a minute

STATISTICS = "running statistics are written to, and a plain function declares nothing"
STRIDES = "the fake result of a transposed input has other strides than the real one"
SECOND = "the second derivative by torch.func is wrong; autograd's agrees with finite differences"
TWICE = "where two inputs go to one place, both get its gradient; the documentation says so"

FOUND = {
    "native_batch_norm": {
        "schema": STATISTICS,
        "fake": "a batch of one element divides by zero; " + STRIDES,
        "non_differentiable": "the mean and the standard deviation of the batch carry no gradient",
        "gradcheck": "the same",
    },
    "nn.functional.instance_norm": {"schema": STATISTICS, "nesting": SECOND},
    "nn.functional.batch_norm": {"schema": STATISTICS, "fake": STRIDES, "nesting": SECOND},
    "nn.functional.max_unpool1d": {"directional": TWICE, "gradcheck": TWICE},
    "nn.functional.bilinear": {"low_precision": "long sums are accumulated in half precision"},
    "torch.ops.aten._safe_softmax.default": {"nesting": "the tangent of its gradient is nan under torch.func"},
    "bernoulli": {"low_precision": "it draws other numbers in other dtypes; PyTorch's wrapper hides that it draws"},
    "scatter_reduce.prod": {"forward_mode": "the tangent is silently zero"},
}
"""Operator -> check -> what is wrong there, or what it says of itself; torch 2.13."""


def samples_of(info):
    """The first two samples of an operator, as PyTorch makes them."""
    made = list(info.sample_inputs("cpu", torch.float32, requires_grad=True))[:2]
    return [Sample(row.input, *row.args, **row.kwargs) for row in made]


def is_small(info):
    return all(sum(x.numel() for x in sample.tensors()) <= SMALL for sample in samples_of(info))


def chosen():
    """Every tenth or so of the operators that have a gradient, small ones only."""
    dtypes = (torch.float32, torch.float64)
    able = [row for row in op_db if row.supports_autograd and all(row.supports_dtype(d, "cpu") for d in dtypes)]
    found = {row.full_name: row for row in able}
    small = [name for name in list(found)[::7] if is_small(found[name])]
    return {name: found[name] for name in small[:60]}


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # sparse tensors are in beta, says torch
    INFOS = chosen()


def test_there_are_sixty():
    assert 60 == len(INFOS)


def is_slow(name):
    """Whether only `make test-all` runs it: what has nothing to find, but for every fifth."""
    return name not in FOUND and list(INFOS).index(name) % 5 > 0


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if is_slow(n) else n for n in INFOS])
def test_every_finding_is_known(name):
    info = INFOS[name]

    def operator(*args, **kwargs):
        return info.op(*args, **kwargs)

    report = check(operator, samples_of(info), checks=CHECKS)

    assert FOUND.get(name, {}).keys() == {row.check for row in report.results if row.is_finding}, str(report)
