"""The check `compiled_autograd` fails a backward that gives something else when it is compiled."""

import torch
from torch import Tensor
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample

result_of = verdict("compiled_autograd", lambda make: [Sample(make(4))])


@torch.library.custom_op("faults_compiled_autograd::honest", mutates_args=())
def honest(x: Tensor) -> Tensor:
    return x * 2


honest.register_fake(torch.empty_like)
honest.register_autograd(lambda ctx, grad: 2 * grad)


@torch.library.custom_op("faults_compiled_autograd::differs", mutates_args=())
def differs(x: Tensor) -> Tensor:
    return x * 2


differs.register_fake(torch.empty_like)
differs.register_autograd(lambda ctx, grad: grad * (3 if torch.compiler.is_compiling() else 2))


@custom_op("faults_compiled_autograd::ours")
def ours(x: Tensor) -> Tensor:
    return x * 2


ours.register_fake(torch.empty_like)
ours.register_backward(lambda grad: grad * (3 if torch.compiler.is_compiling() else 2))


def test_honest_op_passes():
    assert "passed" == result_of(honest).status


def test_other_gradient_when_compiled_fails():
    result = result_of(differs)

    assert "failed" == result.status
    assert "compiled backward: gradient of 'x'[" in result.message
    assert "(ratio 1.5), by a call in eager" in result.message


def test_other_gradient_of_an_op_declared_here_fails():
    assert "(ratio 1.5), by a call in eager" in result_of(ours).message


def test_gradient_that_is_zero_passes():
    assert "passed" == result_of(torch.sign).status


def test_comparison_is_skipped():
    result = result_of(lambda x: x > 0)

    assert ("skipped", "no output carries a gradient") == (result.status, result.message)
