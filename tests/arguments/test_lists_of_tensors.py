"""A list of tensors is taken as it is read: a class that adds to a list what the op would not see is refused."""

from collections import namedtuple

import pytest
import torch
from torch import Tensor

from custom_autograd import KernelError, custom_op


@custom_op("tensor_lists::first", reference=True)
def first(tensors: list[Tensor], k: float = 1.0) -> Tensor:
    return tensors[0] * k


@custom_op("tensor_lists::converted", reference=True)
def converted(tensors: list[Tensor | None], dims: tuple[int, ...] = (0,)) -> Tensor:
    return tensors[0] * 1


class Reversed(list):
    def __getitem__(self, index):
        return super().__getitem__(-1 - index)


class Row(tuple):
    pass


Pair = namedtuple("Pair", ("a", "b"))
X, Y = torch.ones(2), torch.zeros(2)
TAKEN = {
    "list": [X, Y],
    "tuple": (X, Y),
    "NamedTuple": Pair(X, Y),
    "what torch.max returns": torch.max(torch.ones(2, 2), 0),
    "ParameterList": torch.nn.ParameterList([X, Y]),
}


@pytest.mark.parametrize("op", [first, converted], ids=["plain", "beside a converted argument"])
@pytest.mark.parametrize("cls", [Reversed, Row])
def test_a_subclass_is_refused(op, cls):
    with pytest.raises(KernelError, match=f"{cls.__name__}, a subclass of"):
        op(cls([X, Y]))


@pytest.mark.parametrize("name", TAKEN)
def test_what_reads_as_a_list_is_taken(name):
    assert torch.equal(X, first(TAKEN[name]))


def test_a_compiled_call_refuses_it_as_an_eager_one(fresh_compiler):
    with pytest.raises(KernelError, match="Reversed, a subclass of list"):
        torch.compile(first, backend="eager")(Reversed([X, Y]))
