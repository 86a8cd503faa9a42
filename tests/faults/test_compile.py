"""The check `compile` fails what breaks under torch.compile(fullgraph=True), or changes its value there."""

import torch
from torch import Tensor
from verdicts import verdict

from custom_autograd.schema.samples import Sample

result_of = verdict("compile", lambda make: [Sample(make(4))])


@torch.library.custom_op("faults_compile::honest", mutates_args=())
def honest(x: Tensor) -> Tensor:
    return x * 2


honest.register_fake(torch.empty_like)
honest.register_autograd(lambda ctx, grad: 2 * grad)


@torch.library.custom_op("faults_compile::branching", mutates_args=())
def branching(x: Tensor) -> Tensor:
    return x * 2


branching.register_fake(torch.empty_like)
branching.register_autograd(lambda ctx, grad: 2 * grad if grad.sum() > 0 else grad + grad)


def test_honest_op_passes():
    assert "passed" == result_of(honest).status


def test_backward_that_branches_on_data_fails():
    assert "static shapes: compiling raises" in result_of(branching).message


def test_random_numbers_are_the_same_compiled():
    assert "passed" == result_of(torch.nn.functional.dropout).status
