"""Ops that return sparse tensors: their derivatives are checked through the dense form of what they return."""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op

THRESHOLD = 0.5


def kept(x: Tensor) -> Tensor:
    return (x * (x.abs() > THRESHOLD)).to_sparse()


@custom_op("sparse_results::right")
def right(x: Tensor) -> Tensor:
    return kept(x)


@custom_op("sparse_results::wrong")
def wrong(x: Tensor) -> Tensor:
    return kept(x)


for op in (right, wrong):
    op.register_fake(lambda x: torch.empty_like(x).to_sparse())
    op.register_samples(lambda make: [Sample(make(3, 4))])


@right.register_backward
def right_backward(grad: Tensor, x: Tensor) -> Tensor:
    return grad.to_dense() * (x.abs() > THRESHOLD)


@wrong.register_backward
def wrong_backward(grad: Tensor, x: Tensor) -> Tensor:
    return 2 * grad.to_dense() * (x.abs() > THRESHOLD)


def test_an_op_with_a_sparse_result_has_no_findings():
    checks = ["contract", "cotangents", "gradcheck", "explore=1s", "symbolic", "opcheck", "compile"]
    report = right.check(checks=checks, raise_on_failure=False)

    assert report.ok, str(report)
    assert {"contract", "cotangents", "gradcheck", "explore"} <= {
        result.check for result in report.results if result.status == "passed"
    }


def test_a_wrong_gradient_of_a_sparse_result_is_found():
    report = wrong.check(checks=["gradcheck", "directional"], raise_on_failure=False)

    assert {"gradcheck", "directional"} == {result.check for result in report.results if result.status == "failed"}
