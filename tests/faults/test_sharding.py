"""The check `sharding` finds lines and rules that are not true of an op, and passes honest ones."""

import pytest
import torch
from torch import Tensor
from verdicts import verdict

from custom_autograd import Sample, check, custom_op
from custom_autograd.torch_private import collectives

pytestmark = pytest.mark.skipif(collectives.why_not() is not None, reason=f"{collectives.why_not()}")
result_of = verdict("sharding", lambda make: [Sample(make(8, 4), make(4))])


def declare(name, line, rule=None):
    @custom_op(f"sharding_faults::{name}", shapes=line, reference=True)
    def op(x: Tensor, weight: Tensor) -> Tensor:
        return x.softmax(-1) * weight

    if rule is not None:
        op.register_sharding("d", rule)
    return op


def test_an_honest_line_passes():
    assert "passed" == result_of(declare("honest", "x: n [d], weight: [d] -> output: n [d]")).status


def test_a_cut_dimension_along_which_the_op_computes_fails():
    result = result_of(declare("cut", "x: n d, weight: d -> output: n d"))

    assert "failed" == result.status
    assert "with DTensors (x: S(1), weight: " in result.message
    assert "the line of shapes, or a rule of register_sharding, is not true of the op" == result.cause


def test_a_rule_that_combines_wrongly_fails():
    line = "x: n [d], weight: [d] -> output: n [d]"

    assert "failed" == result_of(declare("combined", line, lambda output: output)).status


def test_a_rule_that_only_adds_up_what_it_gathers_passes():
    """Nothing in its backward meets a tensor of several ranks before the collective does."""

    @custom_op("sharding_faults::added", outputs=("total",), shapes="x: n [d] -> total: n", reference=True)
    def added(x: Tensor) -> Tensor:
        return x.sum(-1)

    added.register_sharding("d", lambda total, gather: gather(total).sum(0))

    results = check(added, [Sample(torch.rand(8, 4))], checks=["sharding"], raise_on_failure=False).results
    assert {"passed"} == {result.status for result in results}


def test_an_op_without_a_line_is_skipped():
    op = custom_op("sharding_faults::bare", lambda x, w: x * w, schema="(Tensor x, Tensor w) -> Tensor", reference=True)
    result = result_of(op)

    assert "skipped" == result.status
    assert "no line of shapes declares how it can be sharded (shapes=)" == result.message


def test_the_checks_leave_no_process_group():
    result_of(declare("left", "x: n [d], weight: [d] -> output: n [d]"))

    assert not torch.distributed.is_initialized()
