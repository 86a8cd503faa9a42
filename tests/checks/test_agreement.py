"""Which calls of other sizes a check makes: those that the reference takes, in memory that a machine has."""

import torch
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.agreement import MOST_BYTES, accepted_sizes
from custom_autograd.verification.harness.targets import target_of


def pairs(x: Tensor, y: Tensor) -> Tensor:
    """Make a number for each pair, of which a view alone takes no memory."""
    every = x.flatten()[:, None].expand(-1, y.numel())
    return (every * y.flatten()).sum(1).reshape(x.shape)


def reading(x: Tensor, y: Tensor) -> Tensor:
    return x * float(y.sum())


def labels_of(op, *shapes) -> list[str]:
    return [label for label, _ in accepted_sizes(target_of(op), Sample(*(torch.ones(shape) for shape in shapes)))]


def test_sizes_for_which_a_reference_takes_too_much_memory_are_left_out():
    op = custom_op("agreement::pairs", pairs, reference=True)

    square = labels_of(op, (4, 4), (4, 4))

    assert 257**4 * 4 > MOST_BYTES > 257 * 4 * 257 * 4 * 4
    assert ("size 4 -> 5" in square, "size 4 -> 257" in square) == (True, False)
    assert "size 4 -> 257" in labels_of(op, (4, 3), (4, 3))


def test_views_take_no_memory():
    op = custom_op(
        "agreement::views",
        lambda x, y: x.flatten()[:, None].expand(-1, y.numel())[:, 0] + y.flatten(),
        schema="(Tensor x, Tensor y) -> Tensor",
        reference=True,
    )

    assert "size 4 -> 257" in labels_of(op, (4, 4), (4, 4))


def test_a_reference_that_reads_data_is_asked_with_data():
    assert "size 4 -> 257" in labels_of(custom_op("agreement::reading", reading, reference=True), (4, 4), (4, 4))
