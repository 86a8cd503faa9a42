"""Everything that can be checked is seen through one interface."""

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.check import check
from custom_autograd.verification.harness.targets import target_of


@torch.library.custom_op("targets::scaled", mutates_args=())
def scaled(x: Tensor, k: float) -> Tensor:
    return x * k


@torch.library.custom_op("targets::add_one", mutates_args=("x",))
def add_one(x: Tensor) -> None:
    x.add_(1)


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].cos()


class OldSine(Sine):
    @staticmethod
    def forward(ctx, angle):
        ctx.save_for_backward(angle)
        return angle.sin()

    setup_context = torch.autograd.Function.setup_context


def plain(x, *rest, k=2, **options):
    return x * k


@each(
    ("value", "name", "arguments"),
    [
        (scaled, "targets::scaled", ["x", "k"]),
        (torch.ops.targets.scaled, "targets::scaled", ["x", "k"]),
        (torch.ops.aten.add.Tensor, "aten::add.Tensor", ["self", "other", "alpha"]),
        (Sine, "Sine", ["x"]),
        (OldSine, "OldSine", ["angle"]),
        (plain, "plain", ["x", "k"]),
        (torch.cat, "cat", []),
    ],
)
def test_name_and_arguments(value, name, arguments):
    target = target_of(value)

    assert (name, arguments) == (target.name, [argument.name for argument in target.arguments])


def test_written_arguments_are_known_from_the_schema():
    assert target_of(add_one).is_mutating
    assert not target_of(scaled).is_mutating


def test_location_is_file_and_line():
    assert target_of(plain).location.startswith("test_targets.py:")


@pytest.mark.slow
@each("value", [Sine, OldSine, torch.sin])
def test_right_functions_have_no_findings(value):
    report = check(value, lambda make: [Sample(make(3, 2))])

    assert report.ok, str(report)


def test_torch_library_op_fails_forward_mode_only():
    op = torch.library.custom_op("targets::cubed", lambda x: x**3, mutates_args=(), schema="(Tensor x) -> Tensor")
    op.register_fake(torch.empty_like)
    op.register_autograd(
        lambda ctx, grad: 3 * grad * ctx.saved_tensors[0] ** 2,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    report = check(op, lambda make: [Sample(make(3, 2))])

    assert ["forward_mode"] == [result.check for result in report.results if result.is_finding]


def test_in_place_op_is_checked_without_touching_the_sample():
    sample = Sample(torch.zeros(3))
    check(add_one, [sample], checks=["schema", "fake", "vmap"])

    assert torch.equal(torch.zeros(3), sample.args[0])


def test_a_reference_needs_no_defaults_of_its_own():
    op = custom_op("targets::scaled_by", lambda x, by=2.0: x * by, schema="(Tensor x, float by=2.0) -> Tensor")
    op.register_reference(lambda x, by: x * by)
    op.register_samples(lambda make: [Sample(make(3)), Sample(make(3), by=3.0)])

    report = op.check(checks=["reference", "special_values"])

    assert {"passed"} == {result.status for result in report.results}
