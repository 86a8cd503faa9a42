"""Errors of arity count what was given to the op, and not the handle that it is called through."""

from typing import NamedTuple

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import custom_op

X = torch.ones(2)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@custom_op("arity::one", reference=True)
def one(x: Tensor) -> Tensor:
    return x * 2


@custom_op("arity::defaults")
def defaults(x: Tensor, n: int = 2, *, eps: float = 1e-6) -> Tensor:
    return x * n + eps


@custom_op("arity::keyword")
def keyword(x: Tensor, y: Tensor, *, eps: float) -> Tensor:
    return x * y + eps


@custom_op("arity::positional_only")
def positional_only(x: Tensor, y: Tensor, /) -> Tensor:
    return x * y


@custom_op("arity::container", reference=True)
def container(pair: Pair, scale: float = 1.0) -> Tensor:
    return pair.first * pair.second * scale


@custom_op("arity::converted")
def converted(x: Tensor, dims: tuple[int, int] = (0, 1)) -> Tensor:
    return x * dims[1]


@custom_op("arity::variadic")
def variadic(x: Tensor, *others: Tensor) -> Tensor:
    return x * len(others)


TOO_MANY = {
    "one": (one, (X, X), {}, "takes 1 positional argument but 2 were given"),
    "defaults": (
        defaults,
        (X, 2, 1e-6),
        {},
        "takes from 1 to 2 positional arguments but 3 were given",
    ),
    "keyword": (
        keyword,
        (X, X, 1.0, 2),
        {"eps": 1.0},
        "takes 2 positional arguments but 4 were given",
    ),
    "positional only": (
        positional_only,
        (X, X, X),
        {},
        "takes 2 positional arguments but 3 were given",
    ),
    "container": (
        container,
        (Pair(X, X), 1.0, 2),
        {},
        "takes from 1 to 2 positional arguments but 3 were given",
    ),
    "converted": (
        converted,
        (X, (0, 1), 2),
        {},
        "takes from 1 to 2 positional arguments but 3 were given",
    ),
}


@each("row", TOO_MANY.values(), ids=TOO_MANY)
def test_too_many_arguments(row):
    op, args, kwargs, message = row
    for _ in range(2):
        with pytest.raises(TypeError) as caught:
            op(*args, **kwargs)

        assert f"{op.name}() {message}" == str(caught.value)


def test_an_argument_that_is_missing():
    with pytest.raises(TypeError, match=r"arity::keyword\(\) missing 1 required positional argument: 'y'"):
        keyword(X, eps=1.0)


def test_calls_that_fit():
    pair = Pair(X, X)
    found = [
        one(X),
        defaults(X, 3),
        keyword(X, X, eps=1.0),
        positional_only(X, X),
        container(pair),
        converted(X),
        variadic(X, X, X),
    ]

    expected = [2.0, 3.0, 2.0, 1.0, 1.0, 1.0, 2.0]
    torch.testing.assert_close(found, [torch.full((2,), value) for value in expected], rtol=0, atol=1e-5)


@pytest.mark.parametrize("op", [one, container], ids=str)
def test_a_compiled_call(op):
    argument = X if op is one else Pair(X, X)
    compiled = torch.compile(lambda value: op(value), fullgraph=True, backend="eager")

    torch.testing.assert_close(op(argument), compiled(argument))
