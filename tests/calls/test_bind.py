"""Arguments by name, and back."""

import pytest
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.execution.bind import Binder, gather, spread


@custom_op("bind::starred")
def starred(x: Tensor, n: int = 2, *rest: float, k: float = float("inf")) -> Tensor:
    return x * n


SCHEMA = starred.schema


def test_defaults_are_filled_in():
    assert {"x": 1, "n": 2, "rest": [3.0], "k": float("inf")} == Binder(SCHEMA).raw(1, 2, [3.0])


def test_none_stands_for_a_default_that_a_schema_cannot_spell():
    assert {"x": 1, "n": 2, "rest": [], "k": float("inf")} == Binder(SCHEMA).arguments(1, 2, [], k=None)


def test_a_kernel_is_given_what_stands_behind_the_star_one_by_one():
    assert {"x": 1, "n": 2, "rest": (3.0, 4.0), "k": 5.0} == Binder(SCHEMA).given(1, 2, 3.0, 4.0, k=5.0)
    assert ([1, 2, 3.0, 4.0], {"k": 5.0}) == Binder(SCHEMA).user_call({"x": 1, "n": 2, "rest": [3.0, 4.0], "k": 5.0})
    assert ([1, 2, [3.0, 4.0]], {"k": 5.0}) == Binder(SCHEMA).call({"x": 1, "n": 2, "rest": [3.0, 4.0], "k": 5.0})


@pytest.mark.parametrize("values", [(1, 2), (1, 2, 3), (1, 2, 3, 4)], ids=len)
def test_gather_undoes_spread(values):
    gathered = gather(SCHEMA, values)

    assert ["x", "n", "rest"] == [name for name, _ in gathered]
    assert list(values) == spread(SCHEMA, [value for _, value in gathered])


def test_what_a_call_leaves_out_before_the_star_is_left_out():
    assert [("x", 1)] == gather(SCHEMA, (1,))
