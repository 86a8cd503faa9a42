"""What stands behind an annotation is found, however it is written."""

# ruff: noqa: F821 - jaxtyping's shapes are not the names of types

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final, List, NewType, Optional, TypeVar, Union  # noqa: UP035 - old ones too

import pytest
import torch
import typing_extensions
from tables import each
from torch import Tensor

from custom_autograd.schema.annotations import resolve

jaxtyping = pytest.importorskip("jaxtyping")
Float, Int = jaxtyping.Float, jaxtyping.Int

Maybe = typing_extensions.TypeAliasType("Maybe", Optional[Tensor])  # noqa: UP045 - see above
Item = TypeVar("Item")
Items = typing_extensions.TypeAliasType("Items", list[Item], type_params=(Item,))
Key = TypeVar("Key")
Reversed = typing_extensions.TypeAliasType("Reversed", dict[Item, Key], type_params=(Key, Item))
Itself = typing_extensions.TypeAliasType("Itself", Item, type_params=(Item,))
Marked = typing_extensions.TypeAliasType("Marked", list[Item], type_params=(Key, Item))
Count = NewType("Count", int)
Bound = TypeVar("Bound", bound=Tensor)
Constrained = TypeVar("Constrained", Tensor, torch.nn.Parameter)


class Subclass(Tensor):
    """One of a user's."""


RESOLVED = [
    (Tensor, Tensor),
    (torch.nn.Parameter, Tensor),
    (Subclass, Tensor),
    (Maybe, Tensor | None),
    (Items[int], list[int]),
    (Reversed[Tensor, str], dict[str, Tensor]),
    (Itself[Count], int),
    (Marked[str, Count], list[int]),
    (Maybe | Itself[int], Tensor | None | int),
    (typing_extensions.Required[Count], int),
    (typing_extensions.NotRequired[Count], int),
    (typing_extensions.ReadOnly[Maybe], Tensor | None),
    (Count, int),
    (List[Count], list[int]),  # noqa: UP006 - see above
    (Sequence[Count], Sequence[int]),
    (Bound, Tensor),
    (Constrained, Tensor),
    (Annotated[float, "metres"], float),
    (Annotated[Maybe, "metres"], Tensor | None),
    (Final[int], int),
    (Float[Tensor, "batch features"], Tensor),
    (Float[Tensor, "n"] | Int[Tensor, "n"], Tensor),
    (Float[Tensor, "..."] | None, Tensor | None),
    (list[Float[Tensor, "n"]], list[Tensor]),
    (tuple[Count, ...], tuple[int, ...]),
    (tuple[Count, Count], tuple[int, int]),
    (Union[Count, None], int | None),  # noqa: UP007 - see above
    (Item, Item),
    (Any, Any),
    (None, None),
]


@each(("annotation", "expected"), RESOLVED)
def test_an_annotation_stands_for(annotation, expected):
    assert expected == resolve(annotation)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement `type` came with Python 3.12")
def test_the_statement_type():
    names = {"Tensor": Tensor}
    exec("type Maybe = Tensor | None\ntype Many[T] = list[T]\ntype Reversed[K, V] = dict[V, K]", names)
    exec("type Itself[T] = T\ntype Other[T] = Tensor\ntype Row[*Items] = tuple[*Items]", names)

    assert Tensor | None == resolve(names["Maybe"])
    assert list[int] == resolve(names["Many"][int])
    assert dict[str, Tensor] == resolve(names["Reversed"][Tensor, str])
    assert int is resolve(names["Itself"][int])
    assert Tensor is resolve(names["Other"][int])
    assert tuple[Tensor, int] == resolve(names["Row"][Tensor, int])
