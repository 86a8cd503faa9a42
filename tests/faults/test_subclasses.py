"""The check `subclasses` fails an op that subclasses and modes do not see, or see in parts."""

from dataclasses import replace

import numpy as np
import torch
from tables import each
from torch import Tensor
from torch.autograd import Function
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.targets import target_of

result_of = verdict("subclasses", lambda make: [Sample(make(4, 3))])


@custom_op("faults_subclasses::squared")
def squared(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() ** 2)


@squared.register_backward
def _(grad, x):
    return 2 * grad * x


@custom_op("faults_subclasses::row", schema="(Tensor(a) x, int n=1) -> Tensor(a)", reference=True)
def row(x, n=1):
    return x[n]


@torch.library.custom_op("faults_subclasses::plain_only", mutates_args=())
def plain_only(x: Tensor) -> Tensor:
    return x * x


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _takes_memory(ctx, grad):
    return torch.from_numpy(2 * grad.numpy() * ctx.saved_tensors[0].detach().numpy())


plain_only.register_autograd(_takes_memory, setup_context=_save)


class Squared(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]


class KnowsItsSubclasses(Squared):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x if type(x) is Tensor or type(x) is torch.nn.Parameter else x * x * 2


def name_of(op):
    return getattr(op, "__name__", str(op))


@each("op", [squared, Squared, torch.sin, torch.nn.functional.dropout])
def test_op_that_is_one_for_all_passes(op):
    assert ["passed"] * 5 == [result_of(op, seed=seed).status for seed in range(5)]


def test_view_that_is_taken_apart_by_design_passes():
    assert ["passed"] * 5 == [result_of(row, seed=seed).status for seed in range(5)]


def test_call_that_goes_round_the_dispatcher_fails():
    result = result_of(replace(target_of(squared), call=lambda x: x * x))

    assert "failed" == result.status
    assert (
        "with a TorchDispatchMode: the op 'faults_subclasses::squared' is seen 0 times in one call, expected once; "
        "beside it, aten::mul.Tensor" == result.message.splitlines()[0]
    )


def test_op_that_takes_plain_tensors_for_granted_fails():
    result = result_of(plain_only)

    assert "failed" == result.status
    assert "with a wrapper with __torch_dispatch__: the op raises " in result.message


def test_other_values_for_a_subclass_fail():
    result = result_of(KnowsItsSubclasses)

    assert "failed" == result.status
    assert "with a wrapper with __torch_dispatch__: output 0[0, 0] = " in result.message
    assert "(ratio 2), by a plain call" in result.message


@custom_op("faults_subclasses::projected")
def projected(x: Tensor, matrix: Tensor) -> Tensor:
    return torch.from_numpy(matrix.numpy() @ x.numpy())


@projected.register_backward
def _(grad, x, matrix):
    return {"x": grad @ matrix, "matrix": grad[:, None] * x}


def test_a_vector_times_a_matrix_keeps_its_shape():
    """PyTorch squeezes the product in place, which the wrapper has to follow."""
    result = verdict("subclasses", lambda make: [Sample(make(3), make(4, 3))])(projected)

    assert "passed" == result.status, result.message


class ByAddress(Squared):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_dlpack(np.from_dlpack(x.detach()) ** 2)


def test_function_that_reads_by_address_does_not_end_the_process():
    """As with jax.numpy.from_dlpack; a tensor without memory has the address 0."""
    assert "passed" == result_of(ByAddress).status
    assert "skipped" == verdict("fake", lambda make: [Sample(make(4, 3))])(ByAddress).status
