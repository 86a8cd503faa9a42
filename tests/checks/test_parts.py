"""Parts of a check: one for each subset of the inputs, which looks at that subset and at nothing else."""

import torch
from tables import each
from torch.autograd import Function
from verdicts import verdict

from custom_autograd import Sample
from custom_autograd.verification.checks import CHECKS
from custom_autograd.verification.checks.forward_mode import ForwardMode
from custom_autograd.verification.checks.gradcheck import Gradcheck
from custom_autograd.verification.checks.second_order import SecondOrder
from custom_autograd.verification.harness.targets import target_of

WITH_PARTS = (Gradcheck(), SecondOrder(), ForwardMode())


class Product(Function):
    """x * y, with a wrong gradient for y."""

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y, 3 * grad * x


def add(xs, y=None):
    return sum(xs) if y is None else sum(xs) + y


def parts_of(row, op, *samples):
    return row.parts(target_of(op), samples)


def status_of(op, part, sample):
    result = verdict(part, [sample])(op)
    return result.status


@each("row", WITH_PARTS)
def test_there_is_a_part_for_each_subset_of_the_inputs(row):
    found = parts_of(row, Product, Sample(torch.ones(2), torch.ones(2)))

    assert ["x_y", "x", "y"] == list(found)


@each("row", WITH_PARTS)
def test_a_part_is_a_check_of_the_same_name(row):
    found = parts_of(row, Product, Sample(torch.ones(2), torch.ones(2)))

    assert {(row.name, row.code)} == {(part.name, part.code) for part in found.values()}


WITHOUT_PARTS = [row for row in CHECKS if row.name not in {own.name for own in WITH_PARTS}]


@each("row", WITHOUT_PARTS)
def test_any_other_check_is_its_own_part(row):
    assert {"": row} == dict(parts_of(row, Product, Sample(torch.ones(2), torch.ones(2))))


def test_tensors_of_a_list_are_inputs_of_their_own():
    found = parts_of(Gradcheck(), add, Sample([torch.ones(2), torch.ones(2)]))

    assert ["xs0_xs1", "xs0", "xs1"] == list(found)


def test_inputs_of_every_sample_count():
    x = torch.ones(2)

    assert ["xs0", "xs0_y", "y"] == list(parts_of(Gradcheck(), add, Sample([x]), Sample([x], x)))


def test_part_is_skipped_on_a_sample_that_has_not_its_inputs():
    x = torch.ones(2)
    part = parts_of(Gradcheck(), add, Sample([x], x))["y"]

    assert ["passed", "skipped"] == [status_of(add, part, Sample([x], x)), status_of(add, part, Sample([x]))]


def test_only_parts_with_the_wrong_gradient_fail():
    sample = Sample(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0]))
    found = {label: status_of(Product, part, sample) for label, part in parts_of(Gradcheck(), Product, sample).items()}

    assert {"x_y": "failed", "x": "passed", "y": "failed"} == found


def test_op_without_gradients_is_checked_as_a_whole():
    row = Gradcheck()

    assert {"": row} == dict(parts_of(row, add, Sample([torch.arange(3)])))
