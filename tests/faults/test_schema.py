"""The check `schema` fails hidden writes, hidden sharing, and writes that are declared but do not happen."""

import torch
from torch import Tensor
from verdicts import verdict

from custom_autograd.op import custom_op
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.check import check

LIBRARY = torch.library.Library("faults_schema", "DEF")


def define(schema, kernel):
    name = LIBRARY.define(schema)
    LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    return getattr(torch.ops.faults_schema, name.split("::")[-1]).default


def add_one(x: Tensor) -> None:
    x.add_(1)


HONEST = define("honest(Tensor x) -> Tensor", lambda x: x * 2)
IN_PLACE = define("in_place(Tensor(a!) x) -> ()", add_one)
MAYBE_VIEW = define("maybe_view(Tensor x) -> Tensor", lambda x: x.contiguous())


def message_of(op):
    result = verdict("schema", lambda make: [Sample(make(4, 3))])(op)
    return result.message if result.status == "failed" else result.status


def test_honest_op_passes():
    assert "passed" == message_of(HONEST)


def test_declared_write_passes():
    assert "passed" == message_of(IN_PLACE)


def test_sharing_in_one_layout_only_fails_there():
    assert message_of(MAYBE_VIEW).startswith("as given: output 0 shares memory with 'x': return a copy")


def test_views_of_plain_functions_are_no_fault():
    result = verdict("schema", lambda make: [Sample(make(4, 3))])(lambda x: x.t())

    assert "passed" == result.status


@custom_op("schema_faults::scaled", tags=torch.Tag.pointwise, reference=True)
def scaled(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


def test_op_that_is_tagged_pointwise_and_broadcasts_passes():
    samples = [(torch.ones(3, 2), torch.ones(2)), (torch.ones(3, 1), torch.ones(3, 4)), (torch.ones(()), torch.ones(2))]

    report = check(scaled, [Sample(*values) for values in samples], checks=["schema"])

    assert report.ok, str(report)


@custom_op("schema_faults::inferred")
def inferred(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x * 2


def test_result_that_is_made_in_inference_mode_fails():
    message = message_of(inferred)

    assert message.startswith("as given: output 0 is made in inference mode, so autograd cannot record it")


@custom_op("schema_faults::with_grad")
def with_grad(x: Tensor) -> Tensor:
    if x.requires_grad and x.is_leaf:
        x.grad = torch.zeros_like(x)  # as warp.from_torch(x) does
    return x * 2


def test_call_that_sets_the_grad_of_an_input_fails():
    assert message_of(with_grad).startswith("the call sets the .grad of 'x'")


@custom_op("schema_faults::drop", outputs=("out", "kept"))
def drop(x: Tensor, p: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    kept = torch.rand(x.shape, generator=generator) >= p
    return x if p == 0 else x * kept, kept


def test_random_op_that_returns_its_input_for_another_number_fails():
    samples = [Sample(torch.ones(4), 0.5, torch.Generator().manual_seed(1))]
    (result,) = check(drop, samples, checks=["schema"], isolated=False).results

    assert result.message.startswith("p=0.0: KernelError: schema_faults::drop: the default kernel")
    assert "returns an output 'out' that shares memory with input 'x'" in result.message
