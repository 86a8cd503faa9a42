"""One op for each type an argument can have: x times a number that says exactly what the kernel was given."""

from __future__ import annotations

import enum
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Optional

import torch
from torch import Tensor

from custom_autograd import CustomOp, Sample, custom_op


class Side(enum.Enum):
    """With an alias."""

    LEFT = 1
    RIGHT = 2
    SINISTER = 1  # noqa: PIE796 - the alias


class Level(enum.IntEnum):
    """Of integers."""

    LOW = 0
    HIGH = 1


class Padding(str, enum.Enum):
    """Of strings, which are not their names."""

    ZEROS = "zeros"
    SAME = "same size"


class Access(enum.Flag):
    """Members that combine."""

    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Leaf:
    """One type of argument.

    Attributes:
        annotation: as it stands in the declaration.
        value: what a call passes.
        seen: what kernels and rules then get.
        is_saved: `torch.export.save` can write it.
        spelling: of the dispatcher.
    """

    annotation: Any
    value: Any
    seen: Any
    spelling: str
    is_saved: bool = True


def leaf(annotation: Any, value: Any, spelling: str, *, seen: Any = ..., is_saved: bool = True) -> Leaf:
    return Leaf(annotation, value, value if seen is ... else seen, spelling, is_saved)


LEAVES = {
    "complex": leaf(complex, 1 + 2j, "complex"),
    "complex or None": leaf(complex | None, None, "complex?"),
    "list of complex": leaf(list[complex], [1j, 2 + 0j], "complex[]", is_saved=False),
    "size": leaf(torch.Size, torch.Size([2, 3]), "SymInt[]"),
    "size from a tuple": leaf(torch.Size, (2, 3), "SymInt[]", seen=torch.Size([2, 3])),
    "layout": leaf(torch.layout, torch.sparse_csr, "Layout"),
    "memory format": leaf(torch.memory_format, torch.preserve_format, "MemoryFormat"),
    "dtype": leaf(torch.dtype, torch.bfloat16, "ScalarType"),
    "dtype or None": leaf(Optional[torch.dtype], torch.float16, "ScalarType?"),  # noqa: UP045 - old spelling
    "list of dtypes": leaf(list[torch.dtype], [torch.int8, torch.bool], "ScalarType[]", is_saved=False),
    "device": leaf(torch.device, torch.device("cpu"), "Device"),
    "device from its name": leaf(torch.device, "cpu", "Device", seen=torch.device("cpu")),
    "list of devices": leaf(list[torch.device], [torch.device("meta")], "Device[]", is_saved=False),
    "number": leaf(int | float, 2.5, "Scalar"),
    "list of numbers": leaf(list[int | float | complex], [1, 2.5, 3j], "Scalar[]", is_saved=False),
    "sequence of complex": leaf(
        Sequence[complex], (1j, 2, 0.5 - 1j), "complex[]", seen=[1j, 2 + 0j, 0.5 - 1j], is_saved=False
    ),
    "qscheme": leaf(torch.qscheme, torch.per_channel_affine, "str"),
    "qscheme or None": leaf(torch.qscheme | None, None, "str?"),
    "list of qschemes": leaf(list[torch.qscheme], [torch.per_tensor_symmetric, torch.per_tensor_affine], "str[]"),
    "list of str": leaf(list[str], ["a", 'q"\\\n é'], "str[]"),
    "list of str or None": leaf(list[str | None], ["a", None], "str?[]", is_saved=False),
    "list of int or None": leaf(list[int | None], [7, None], "SymInt?[]", is_saved=False),
    "str or None": leaf(str | None, None, "str?"),
    "enum": leaf(Side, Side.RIGHT, "str"),
    "enum by its alias": leaf(Side, Side.SINISTER, "str", seen=Side.LEFT),
    "enum or None": leaf(Side | None, None, "str?"),
    "enum of integers": leaf(Level, Level.HIGH, "str"),
    "enum of strings": leaf(Padding, Padding.SAME, "str"),
    "flags": leaf(Access, Access.READ | Access.WRITE, "int"),
    "list of enums": leaf(list[Side], [Side.RIGHT, Side.LEFT], "str[]"),
    "list of enums or None": leaf(list[Side] | None, None, "str[]?"),
    "tuple of enums": leaf(tuple[Side, Side], (Side.RIGHT, Side.LEFT), "str[2]"),
    "literal of str": leaf(Literal["a", "b"], "b", "str"),
    "literal of int": leaf(Literal[1, 2], 2, "SymInt"),
    "literal of bool": leaf(Literal[True], True, "bool"),
    "literal or None": leaf(Literal["a", "b"] | None, None, "str?"),
    "literal with None": leaf(Literal["a", None], "a", "str?"),
    "literal of several types": leaf(Literal["a", 1, True, None], 1, "str?"),
    "literal of enums": leaf(Literal[Side.LEFT], Side.LEFT, "str"),
    "list of literals": leaf(list[Literal["p", "q"]], ["q", "p"], "str[]"),
    "list or None": leaf(Optional[list[int]], [4, 5], "SymInt[]?"),  # noqa: UP045 - old spelling
    "sequence": leaf(Sequence[float], (0.5, math.inf), "float[]", seen=[0.5, math.inf]),
    "pair": leaf(tuple[int, int], (3, 4), "SymInt[2]"),
    "pair from a list": leaf(tuple[int, int], [3, 4], "SymInt[2]", seen=(3, 4)),
    "pair or None": leaf(tuple[float, float] | None, (1.5, math.nan), "float[2]?"),
    "tuple of any length": leaf(tuple[bool, ...], (True, False, True), "bool[]"),
    "tuple of dtypes": leaf(tuple[torch.dtype, torch.dtype], (torch.int8, torch.half), "ScalarType[2]", is_saved=False),
}


def weight(value: Any) -> float:
    """A number that differs for whatever has another repr: an Enum and its name, a tuple and a list, ..."""
    return 1 + zlib.crc32(repr(value).encode()) % 1000 / 1000


def declare(name: str, row: Leaf) -> CustomOp[..., Any]:
    """The op of a row, with every kind of rule: each must see what the kernel sees."""

    def scale(x: Tensor, value: Any) -> Tensor:
        return x * weight(value)

    scale.__annotations__["value"] = row.annotation
    op: CustomOp[..., Any] = custom_op(f"leaves::{name.replace(' ', '_')}", scale)

    @op.register_fake
    def _(x, value):
        assert weight(value) == weight(row.seen)
        return torch.empty_like(x)

    @op.register_backward
    def _(grad, value):
        return grad * weight(value)

    @op.register_jvp
    def _(tangent_x, value):
        return tangent_x * weight(value)

    @op.register_samples
    def _(make):
        yield Sample(make(3), row.value)

    return op


OPS: dict[str, Callable[..., Tensor]] = {name: declare(name, row) for name, row in LEAVES.items()}
