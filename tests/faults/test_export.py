"""The check `export` fails an op whose exported program gives something else, or cannot be made."""

from dataclasses import replace

import torch
from torch import Tensor
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.targets import target_of


def result_of(op, sample=None):
    return verdict("export", [sample or Sample(torch.ones(4))])(op)


def doubled(x: Tensor) -> Tensor:
    return x * 2


def branching_fake(x):
    return torch.empty_like(x) if x.sum() > 0 else x.new_empty(x.shape)


honest = torch.library.custom_op("faults_export::honest", doubled, mutates_args=())
honest.register_fake(torch.empty_like)
branching = torch.library.custom_op("faults_export::branching", doubled, mutates_args=())
branching.register_fake(branching_fake)


@custom_op("faults_export::scale_", mutates_args=("x",))
def scale_(x: Tensor, k: float) -> None:
    x.mul_(k)


@custom_op("faults_export::count")
def count(x: Tensor) -> int:
    return int((x > 0).sum())


count.register_fake(lambda x: torch.library.get_ctx().new_dynamic_size())


def differs(x):
    return honest(x) * 1.5 if torch.compiler.is_exporting() else honest(x)


def test_honest_op_passes():
    assert "passed" == result_of(honest).status


def test_written_input_is_compared():
    assert "passed" == result_of(scale_, Sample(torch.ones(4), 3.0)).status


def test_an_op_that_returns_a_number_alone_passes():
    """Its program has no results, and torch.export.load does not read such a one."""
    assert "passed" == result_of(count).status


def test_fake_that_reads_data_fails():
    result = result_of(branching)

    assert "failed" == result.status
    assert "exported: the program raises " in result.message


def test_other_value_when_exported_fails():
    result = result_of(replace(target_of(honest), call=differs))

    assert "failed" == result.status
    assert "exported: output 0[0] = 3, expected 2 (ratio 1.5) in eager" in result.message
    assert "saved and loaded: output 0[0] = 3, expected 2 (ratio 1.5) in eager" in result.message


def test_plain_function_is_skipped_with_the_reason():
    result = result_of(doubled)

    assert ("skipped", "only an op of the dispatcher stays one in a program") == (result.status, result.message)
