"""The check `schema` fails hidden writes, hidden sharing, and writes that are declared but do not happen."""

import torch
from torch import Tensor
from verdicts import verdict

from custom_autograd.op import custom_op
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.check import check

LIBRARY = torch.library.Library("faults_schema", "DEF")
BUFFER = torch.zeros(4, 3)


def define(schema, kernel):
    name = LIBRARY.define(schema)
    LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    return getattr(torch.ops.faults_schema, name.split("::")[-1]).default


def write_through_numpy(x: Tensor) -> Tensor:
    x.detach().numpy()[...] += 1
    return x * 2


def write_same_values(x: Tensor) -> Tensor:
    x.clamp_(-1e9, 1e9)
    return x * 2


def return_buffer(x: Tensor) -> Tensor:
    return BUFFER[: x.shape[0], : x.shape[1]].copy_(x)


def add_one(x: Tensor) -> None:
    x.add_(1)


HONEST = define("honest(Tensor x) -> Tensor", lambda x: x * 2)
IN_PLACE = define("in_place(Tensor(a!) x) -> ()", add_one)
NUMPY = define("through_numpy(Tensor x) -> Tensor", write_through_numpy)
SAME_VALUES = define("same_values(Tensor x) -> Tensor", write_same_values)
IDENTITY = define("identity(Tensor x) -> Tensor", lambda x: x)
MAYBE_VIEW = define("maybe_view(Tensor x) -> Tensor", lambda x: x.contiguous())
TWO_VIEWS = define("two_views(Tensor x) -> (Tensor, Tensor)", lambda x: (lambda y: (y, y[0]))(x * 2))
BUFFERED = define("buffered(Tensor x) -> Tensor", return_buffer)
NEVER_WRITTEN = define("never_written(Tensor(a!) x) -> ()", lambda x: None)


def message_of(op):
    result = verdict("schema", lambda make: [Sample(make(4, 3))])(op)
    return result.message if result.status == "failed" else result.status


def test_honest_op_passes():
    assert "passed" == message_of(HONEST)


def test_declared_write_passes():
    assert "passed" == message_of(IN_PLACE)


def test_write_through_numpy_fails():
    assert "as given: 'x' is written to, which the schema does not declare: mutates_args=('x',)" in message_of(NUMPY)


def test_write_of_the_same_values_fails():
    assert "'x' is written to in place, with the values it had" in message_of(SAME_VALUES)


def test_returned_input_fails():
    assert "as given: output 0 shares memory with 'x': return a copy" in message_of(IDENTITY)


def test_sharing_in_one_layout_only_fails_there():
    assert message_of(MAYBE_VIEW).startswith("as given: output 0 shares memory with 'x': return a copy")


def test_outputs_that_share_memory_fail():
    assert "output 1 shares memory with output 0" in message_of(TWO_VIEWS)


def test_returned_buffer_fails():
    assert "output 0 of one call shares memory with that of the next" in message_of(BUFFERED)


def test_declared_write_that_never_happens_fails():
    assert "'x' is declared as written to, but keeps its value" == message_of(NEVER_WRITTEN)


def test_views_of_plain_functions_are_no_fault():
    result = verdict("schema", lambda make: [Sample(make(4, 3))])(lambda x: x.t())

    assert "passed" == result.status


@custom_op("schema_faults::centred", tags=torch.Tag.pointwise, reference=True)
def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


@custom_op("schema_faults::scaled", tags=torch.Tag.pointwise, reference=True)
def scaled(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


def test_op_that_is_tagged_pointwise_and_mixes_rows_fails():
    result = verdict("schema", lambda make: [Sample(make(3, 2))])(centred)

    assert "failed" == result.status
    assert result.message.startswith("tagged pointwise, called with the first row alone: output 0[0, 0] = 0, expected ")


def test_op_that_is_tagged_pointwise_and_broadcasts_passes():
    samples = [(torch.ones(3, 2), torch.ones(2)), (torch.ones(3, 1), torch.ones(3, 4)), (torch.ones(()), torch.ones(2))]

    report = check(scaled, [Sample(*values) for values in samples], checks=["schema"])

    assert report.ok, str(report)
