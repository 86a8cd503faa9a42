"""The check `opcheck` reports each of torch's own tests, and tells their limits from faults."""

import torch
from torch import Tensor
from verdicts import verdict

from custom_autograd.schema.samples import Sample


@torch.library.custom_op("faults_opcheck::honest", mutates_args=())
def honest(x: Tensor) -> Tensor:
    return x * 2


honest.register_fake(torch.empty_like)
honest.register_autograd(lambda ctx, grad: 2 * grad)


@torch.library.custom_op("faults_opcheck::wrong_fake", mutates_args=())
def wrong_fake(x: Tensor) -> Tensor:
    return x * 2


wrong_fake.register_fake(lambda x: x.new_empty(x.shape[0] + 1))


def result_of(op, samples=lambda make: [Sample(make(4))]):
    return verdict("opcheck", samples)(op)


def test_honest_op_passes():
    assert "passed" == result_of(honest).status


def test_wrong_fake_fails_and_names_torchs_test():
    result = result_of(wrong_fake)

    assert "failed" == result.status
    assert "test_faketensor: " in result.message


def test_callable_that_is_no_op_is_skipped():
    result = result_of(torch.relu)

    assert ("skipped", "opcheck needs an op of the dispatcher") == (result.status, result.message)


def test_size_that_depends_on_data_is_skipped_in_the_static_test():
    result = result_of(torch.ops.aten.nonzero.default)

    assert "failed" != result.status
    assert "test_aot_dispatch_static: the size of its results depends on the data" in result.message


def test_sample_without_tensors_is_skipped_with_the_reason():
    result = result_of(torch.ops.aten.ones.default, [Sample([2])])

    assert "skipped" == result.status
    assert "opcheck needs a tensor among the arguments" in result.message


@torch.library.custom_op("faults_opcheck::largest", mutates_args=())
def largest(x: Tensor) -> tuple[Tensor, Tensor]:
    values, positions = x.max(-1)
    return positions, values


largest.register_fake(lambda x: (x.new_empty(x.shape[:-1], dtype=torch.int64), x.new_empty(x.shape[:-1])))
largest.register_autograd(
    lambda ctx, _, grad: torch.nn.functional.one_hot(ctx.positions, ctx.size) * grad.unsqueeze(-1),
    setup_context=lambda ctx, inputs, output: (
        setattr(ctx, "positions", output[0]),
        setattr(ctx, "size", inputs[0].shape[-1]),
    ),
)


def test_an_op_whose_first_result_is_of_integers_passes():
    """Opcheck cannot add its second result to the first in place."""
    result = result_of(largest, lambda make: [Sample(make(3, 4))])

    assert "passed" == result.status
    assert "test_aot_dispatch_static: opcheck adds up the results in the dtype of the first" in result.message
