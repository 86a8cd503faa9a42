"""The check `kernels` asks a kernel with a condition only for what it takes."""

import torch
from torch import Tensor

from custom_autograd import Sample, check, custom_op


@custom_op("known_kernels::doubled", reference=True)
def doubled(x: Tensor, twice: bool = True) -> Tensor:
    return 2 * x if twice else x.clone()


doubled.register_kernel("cpu", lambda x, twice: 2 * x if twice else x.clone(), name="all")
doubled.register_kernel("cpu", lambda x, twice: x + x, name="twice", when=lambda twice: twice)


def test_an_empty_sample_that_a_condition_refuses_is_no_failure():
    report = check(doubled, [Sample(torch.ones(0), twice=False)], checks="kernels")

    assert ["passed"] == [result.status for result in report.results]
