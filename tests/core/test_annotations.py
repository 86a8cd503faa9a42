"""Annotations that are strings are read where they stand."""

from __future__ import annotations

import enum

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from custom_autograd import DeclarationError, custom_op

X = torch.ones(2, dtype=torch.float64)


def test_a_string_names_what_is_local_to_the_function_around_it():
    class Side(enum.Enum):
        LEFT = 2

    Array = Tensor  # noqa: N806 - a type

    @custom_op("annotations::local")
    def op(x: Array, side: Side = Side.LEFT) -> Array:
        return x * side.value

    assert_close(op(X), X * 2)


def test_a_string_names_what_is_local_two_functions_out():
    Array = Tensor  # noqa: N806 - a type

    def declare():
        @custom_op("annotations::nested")
        def op(x: Array, n: int) -> Array:
            return x * n

        return op

    assert "(Tensor x, SymInt n) -> Tensor" == declare().schema.text


def test_a_string_does_not_name_what_is_local_elsewhere():
    def declare(function):
        Elsewhere = Tensor  # noqa: F841, N806 - the point
        return custom_op("annotations::elsewhere", function)

    def op(x: Elsewhere) -> Tensor:  # noqa: F821 - the point
        return x

    with pytest.raises(DeclarationError, match="the annotation of 'x' cannot be read"):
        declare(op)
