"""Lists of tensors that are written to may hold None."""

import pytest
import torch
from torch import Tensor

from custom_autograd import custom_op


@custom_op("written_lists::increment", mutates_args={"targets"})
def increment(targets: list[Tensor | None]) -> None:
    for target in targets:
        if target is not None:
            target.add_(1)


@custom_op("written_lists::add_to_all", mutates_args="unknown")
def add_to_all(x: Tensor, targets: list[Tensor | None], last: Tensor | None) -> Tensor:
    for target in (*targets, last):
        if target is not None:
            target.add_(x)
    return x * 2


@pytest.mark.parametrize("way", ["op", "overload"])
def test_none_in_a_list_is_left_alone(way):
    call = increment if way == "op" else increment.overload
    first, second = torch.zeros(2), torch.ones(2)
    for _ in range(3):
        call([first, None, second])

    torch.testing.assert_close((first, second), (torch.full((2,), 3.0), torch.full((2,), 4.0)))


def test_what_is_written_to_is_counted():
    target = torch.zeros(2)
    before = target._version
    increment([None, target])

    assert target._version > before


@pytest.mark.parametrize("targets", [[None], [], [None, None]], ids=str)
def test_a_list_without_tensors_is_accepted(targets):
    assert increment(targets) is None


def test_unknown_writes_may_have_none_anywhere():
    x, target = torch.ones(2), torch.zeros(2)
    found = add_to_all(x, [None, target], None)

    torch.testing.assert_close((found, target), (torch.full((2,), 2.0), torch.ones(2)))


def test_a_batch_writes_to_each_sample():
    def call(target):
        increment([target, None])
        return target * 2

    torch.testing.assert_close(torch.vmap(call)(torch.zeros(3, 2)), torch.full((3, 2), 2.0))
