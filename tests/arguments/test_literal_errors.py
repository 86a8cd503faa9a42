"""The error for a value that a `Literal` does not have lists every value that it has, None included."""

from typing import Literal

import pytest
import torch
from torch import Tensor

from custom_autograd import KernelError, custom_op


@custom_op("literal_errors::optional", reference=True)
def optional(x: Tensor, act: Literal["silu", "gelu"] | None = None) -> Tensor:
    return x * 1


@custom_op("literal_errors::inside", reference=True)
def inside(x: Tensor, act: Literal["silu", None] = None) -> Tensor:
    return x * 1


@custom_op("literal_errors::several", reference=True)
def several(x: Tensor, act: Literal["silu", 3, None] = None) -> Tensor:
    return x * 1


@custom_op("literal_errors::numbered", reference=True)
def numbered(x: Tensor, act: Literal[3, "silu"] = 3) -> Tensor:
    return x * 1


@custom_op("literal_errors::listed", reference=True)
def listed(x: Tensor, acts: list[Literal["silu"] | None]) -> Tensor:
    return x * 1


@custom_op("literal_errors::required", reference=True)
def required(x: Tensor, act: Literal["silu", "gelu"]) -> Tensor:
    return x * 1


@pytest.mark.parametrize(
    ("op", "value", "values"),
    [
        (optional, "relu", "expected one of 'silu', 'gelu', None, found 'relu'"),
        (inside, "relu", r"expected   Literal\['silu', None\] or None\n  found      str: relu"),
        (several, "relu", r"expected   Literal\['silu', 3, None\] or None\n  found      str: relu"),
        (listed, ["relu"], "expected one of 'silu', None, found 'relu'"),
        (required, "relu", "expected one of 'silu', 'gelu', found 'relu'"),
    ],
    ids=["optional", "inside", "several", "listed", "required"],
)
def test_every_value_is_listed(op, value, values):
    with pytest.raises(KernelError, match=values):
        op(torch.ones(2), value)


@pytest.mark.parametrize("op", [optional, inside, several], ids=["optional", "inside", "several"])
def test_none_is_taken(op):
    assert [1.0, 1.0] == op(torch.ones(2), None).tolist()


def test_the_advice_is_a_value_of_the_literal():
    with pytest.raises(KernelError, match="do         pass 3, for example"):
        numbered(torch.ones(2), "relu")
