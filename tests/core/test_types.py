"""Which annotations an op may have, and how the dispatcher spells them."""

import enum
from collections.abc import Sequence
from typing import Any, List, Literal, Optional, Tuple, Union  # noqa: UP035 - old spellings are supported too

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd.schema.types import describe_supported, find_argument_type, find_return_spelling


class Mode(enum.Enum):
    """Two of them."""

    MEAN = 1
    SUM = 2


SPELLINGS = [
    (Tensor, "Tensor"),
    (torch.nn.Parameter, "Tensor"),
    (Tensor | None, "Tensor?"),
    (Optional[Tensor], "Tensor?"),  # noqa: UP045 - see above
    (list[Tensor], "Tensor[]"),
    (List[Tensor], "Tensor[]"),  # noqa: UP006 - see above
    (Sequence[Tensor], "Tensor[]"),
    (tuple[Tensor, ...], "Tensor[]"),
    (Tuple[Tensor, ...], "Tensor[]"),  # noqa: UP006 - see above
    (list[Tensor | None], "Tensor?[]"),
    (int, "SymInt"),
    (torch.SymInt, "SymInt"),
    (int | None, "SymInt?"),
    (list[int], "SymInt[]"),
    (torch.Size, "SymInt[]"),
    (float, "float"),
    (list[float] | None, "float[]?"),
    (bool, "bool"),
    (complex, "complex"),
    (str, "str"),
    (torch.types.Number, "Scalar"),
    (torch.types.Number | None, "Scalar?"),
    (torch.dtype, "ScalarType"),
    (torch.device, "Device"),
    (torch.layout, "Layout"),
    (torch.memory_format, "MemoryFormat"),
    (torch.memory_format | None, "MemoryFormat?"),
    (torch.qscheme, "str"),
    (Sequence[complex], "complex[]"),
    (Sequence[torch.types.Number], "Scalar[]"),
    (Literal["a", "b"], "str"),
    (Literal[1, 2], "SymInt"),
    (Literal["a"] | None, "str?"),
    (torch.Generator, "Generator"),
    (torch.Generator | None, "Generator?"),
    (int | float, "Scalar"),
    (int | float | None, "Scalar?"),
    (list[str | None], "str?[]"),
    (list[torch.device], "Device[]"),
    (tuple[int, ...], "SymInt[]"),
    (tuple[int], "SymInt[1]"),
    (tuple[int, int] | None, "SymInt[2]?"),
    (Literal["a", 1], "str"),
    (Literal["a", None], "str?"),
    (list[Mode], "str[]"),
    (Mode, "str"),
    (Mode | None, "str?"),
]

REFUSED = [
    dict, dict[str, int], set[int], tuple[int, str], tuple, list, list[list[int]], Tensor | int,
    Union[int, str, None],  # noqa: UP007 - see above
    Any, object, None, type(None), Literal[b"a"], Literal[None], list[torch.Size], list[torch.Generator],
    list[torch.dtype | None], list[tuple[int, int]], tuple[Tensor, Tensor], torch.FloatTensor,
    list[Tensor] | None, list[Tensor | None] | None, tuple[Tensor, ...] | None,
]  # fmt: skip


@each(("annotation", "expected"), SPELLINGS)
def test_an_annotation_has_a_spelling(annotation, expected):
    assert expected == find_argument_type(annotation).spelling


@each(("annotation", "expected"), SPELLINGS)
def test_the_dispatcher_reads_every_spelling(annotation, expected):
    """What the parser calls a type is its own affair; that it takes it is ours."""
    argument = torch._C.parse_schema(f"f({expected} a) -> ()").arguments[0]

    assert "a" == argument.name


@each("annotation", REFUSED)
def test_an_annotation_without_a_spelling_is_found(annotation):
    assert find_argument_type(annotation) is None


@each(
    ("annotation", "expected"),
    [
        (Tensor, "Tensor"),
        (Tensor | None, "Tensor?"),
        (list[Tensor], "Tensor[]"),
        (int, "SymInt"),
        (float, "float"),
        (bool, "bool"),
        (torch.types.Number, "Scalar"),
        (str, None),
        (int | None, None),
        (list[int], None),
        (dict, None),
    ],
)
def test_a_result_has_a_spelling_or_none(annotation, expected):
    assert expected == find_return_spelling(annotation)


@pytest.mark.parametrize("member", [*Mode, "MEAN"])
def test_a_member_of_an_enumeration_travels_as_its_name(member):
    found = find_argument_type(Mode)
    expected = Mode[member] if isinstance(member, str) else member

    assert expected is found.from_dispatcher(found.to_dispatcher(member))


def test_none_travels_as_none():
    found = find_argument_type(Mode | None)

    assert found.to_dispatcher(None) is found.from_dispatcher(None) is None


@pytest.mark.parametrize(("annotation", "value"), [(Mode, "MAX"), (Mode, 1), (Literal["a", "b"], "c")])
def test_other_values_are_refused(annotation, value):
    with pytest.raises(ValueError, match="expected one of"):
        find_argument_type(annotation).to_dispatcher(value)


def test_the_description_names_every_row_once():
    names = describe_supported().split(", ")

    assert len(names) == len(set(names))
    assert {"Tensor", "int", "dtype", "Number"} <= set(names)
