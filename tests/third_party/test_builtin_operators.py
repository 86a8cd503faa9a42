"""`check` over a sample of PyTorch's own differentiable operators, by their OpInfos: what it finds is true."""

import functools
import warnings

import pytest
import torch

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.check import all_checks, check
from slow_cases import slow_but_every

LEFT_OUT = {"compile", "compiled_autograd", "compiled_transforms", "explore", "export", "recompilation", "threads"}
"""What takes long, and what finds more on a quicker machine."""
CHECKS = [row.name for row in all_checks() if row.name not in LEFT_OUT]

STATISTICS = "running statistics are written to, and a plain function declares nothing"
STRIDES = "the fake result of a transposed input has other strides than the real one"
SECOND = "the second derivative by torch.func is wrong; autograd's agrees with finite differences"
TWICE = "where two inputs go to one place, both get its gradient; the documentation says so"

FOUND = {
    "native_batch_norm": {
        "schema": STATISTICS,
        "shared_inputs": STATISTICS,
        "fake": "a batch of one element divides by zero; " + STRIDES,
        "non_differentiable": "the mean and the standard deviation of the batch carry no gradient",
        "gradcheck": "the same",
    },
    "nn.functional.instance_norm": {"schema": STATISTICS, "saved_hooks": STATISTICS, "nesting": SECOND},
    "nn.functional.batch_norm": {"schema": STATISTICS, "fake": STRIDES, "nesting": SECOND},
    "nn.functional.max_unpool1d": {"directional": TWICE, "gradcheck": TWICE},
    "nn.functional.bilinear": {"low_precision": "long sums are accumulated in half precision"},
    "torch.ops.aten._safe_softmax.default": {"nesting": "the tangent of its gradient is nan under torch.func"},
    "bernoulli": {"low_precision": "it draws other numbers in other dtypes; PyTorch's wrapper hides that it draws"},
    "sparse.sampled_addmm": {"second_order": "the derivative of its gradient along the incoming one raises for CSR"},
    "scatter_reduce.prod": {"forward_mode": "the tangent is silently zero"},
    "to_sparse": {"directional": "an entry that is zero is not stored, and its gradient is dropped"},
    "view_copy": {"forward_mode": "a transposed tangent raises: its formula views what has to be copied"},
}
"""Operator -> check -> what is wrong there, or what it says of itself; torch 2.13."""


# fmt: off
DRAWN = (
    "sub", "vdot", "combinations", "chunk", "conj", "corrcoef", "cummax", "true_divide", "diagonal", "remainder",
    "sparse.sampled_addmm", "log", "lu", "max.reduction_with_dim", "std_mean.unbiased", "max.binary",
    "nn.functional.softmin", "aminmax", "native_batch_norm", "nn.functional.adaptive_max_pool1d",
    "nn.functional.conv_transpose1d", "nn.functional.instance_norm", "nn.functional.pad.replicate",
    "nn.functional.interpolate.linear", "nn.functional.soft_margin_loss", "nn.functional.avg_pool2d",
    "nn.functional.max_unpool1d", "nn.functional.bilinear", "torch.ops.aten._safe_softmax.default",
    "nn.functional.tanhshrink", "nn.functional.batch_norm", "mm", "view_copy", "pow", "__radd__", "rsub",
    "tensor_split", "polygamma.polygamma_n_1", "view", "column_stack", "index_reduce.mean", "index_put", "float",
    "bernoulli", "unbind_copy", "renorm", "tile", "zero_", "mT", "to_sparse", "nn.functional.smooth_l1_loss", "where",
    "nn.functional.dropout", "nn.functional.embedding", "var", "nn.functional.nll_loss",
    "nn.functional.pairwise_distance", "scatter_reduce.prod", "fft.fft2", "fft.rfftn",
)
"""Every seventh of the operators of torch 2.13 that have a gradient in float32 and float64, small ones only."""
# fmt: on


def samples_of(info):
    """The first two samples of an operator, as PyTorch makes them."""
    made = list(info.sample_inputs("cpu", torch.float32, requires_grad=True))[:2]
    return [Sample(row.input, *row.args, **row.kwargs) for row in made]


@functools.cache
def infos():
    """The operators of `DRAWN` that this torch has; PyTorch takes a second to make its database."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse tensors are in beta, says torch
        from torch.testing._internal.common_methods_invocations import op_db

    found = {row.full_name: row for row in op_db}
    return {name: found[name] for name in DRAWN if name in found}


def test_there_are_sixty():
    assert 60 == len(DRAWN)
    assert len(infos()) > 55


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
@pytest.mark.parametrize("name", slow_but_every(30, DRAWN))
def test_every_finding_is_known(name):
    if name not in infos():
        pytest.skip(f"PyTorch {torch.__version__} has no {name} in its database")
    info = infos()[name]

    def operator(*args, **kwargs):
        return info.op(*args, **kwargs)

    report = check(operator, samples_of(info), checks=CHECKS)

    assert FOUND.get(name, {}).keys() == {row.check for row in report.results if row.is_finding}, str(report)
