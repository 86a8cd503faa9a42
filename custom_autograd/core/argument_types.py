"""One row per type of an argument: the annotation, and everything that the package has to know about the type.

Add a type by adding a row. Lists, tuples and optionals of it are derived from the row, and so are containers with it.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core import conversions
from custom_autograd.core.conversions import ArgumentType, Conversion
from custom_autograd.core.plain_types import is_class
from custom_autograd.frozen_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One supported type.

    Attributes:
        annotation: as written in a declaration.
        travels: how values reach kernels: the dispatcher's spelling, and the conversions to and from what it holds.
        examples: values that every test of all types passes; none if a value cannot be shared by calls.
        has_list: lists of it are supported.
        has_list_of_optional: lists that may hold None are supported.
        letter: how a container of varying shape holds it: as a tensor (T), an int (I), a float (F), a literal (=) or
            a constant of torch (t); empty if it cannot.
        code: the class of its values, if the dispatcher holds them as integers.
        defaults: the classes of values that can be a default.
        normalize: turns a default into what kernels get for the same value in a call; None if they are the same.
        results: the classes of values that a kernel may return; empty if the type cannot be returned.
        is_number: unions of such types are `Scalar`; the dispatcher makes a number of a tensor without dimensions.
        lists_take_tensors: the dispatcher does so in lists, too, where it may lose a derivative.
    """

    annotation: object
    travels: ArgumentType
    examples: tuple[Any, ...] = ()  # Any: values of the type
    has_list: bool = True
    has_list_of_optional: bool = False
    letter: str = ""
    code: type | None = None
    defaults: tuple[type, ...] = ()
    normalize: Conversion | None = None
    results: tuple[type, ...] = ()
    is_number: bool = False
    lists_take_tensors: bool = False

    @property
    def spelling(self) -> str:
        """Return the dispatcher's name of the type."""
        return self.travels.spelling


@functools.cache
def find_row(spelling: str) -> Row | None:
    """Return the row of a type of the dispatcher, or None if there is none."""
    written = "SymInt" if spelling == "int" else spelling  # the parser reads both as int
    return next((row for row in ARGUMENT_TYPES if row.spelling == written), None)


def example_of(spelling: str) -> str:
    """Return a value of a type as a call writes it, for messages."""
    element, bracket, _ = spelling.removesuffix("?").partition("[")
    row = find_row(element.removesuffix("?"))
    if row is None:
        return f"a value of type {spelling}"
    text = EXAMPLES.get(row.spelling) or repr(row.examples[0])
    return f"[{text}]" if bracket else text


EXAMPLES = {
    "Tensor": "torch.ones(2)",
    "Device": "torch.device('cpu')",
    "Generator": "torch.Generator()",
    "str": "'text'",
}
"""Examples of the types whose values are not written as their repr, or have none that calls can share."""


def find_element_row(spelling: str) -> Row | None:
    """Return the row of a type, of its list or of an optional of one, or None if there is none."""
    return find_row(spelling.removesuffix("?").removesuffix("[]"))


def classes_held_as(letter: str) -> tuple[type, ...]:
    """Return the types that containers of varying shape hold in one way; see `Row.letter`."""
    return tuple(row.annotation for row in ARGUMENT_TYPES if row.letter == letter and is_class(row.annotation))


_IS_INT = "$type({0}) is $int and -9223372036854775808 <= {0} <= 9223372036854775807"
_IS_NUMBER = "($type({0}) is $float or $type({0}) is $bool or $type({0}) is $complex or " + _IS_INT + ")"

_INT = Row(
    int,
    ArgumentType("SymInt"),
    (3, -(2**63)),
    has_list_of_optional=True,
    letter="I",
    defaults=(int, torch.SymInt),
    results=(int, torch.SymInt),
    is_number=True,
)

ARGUMENT_TYPES: tuple[Row, ...] = (
    Row(
        Tensor,
        ArgumentType("Tensor"),
        has_list_of_optional=True,
        letter="T",
        results=(Tensor,),
    ),
    Row(
        bool,
        ArgumentType("bool"),
        (True, False),
        has_list_of_optional=True,
        letter="=",
        defaults=(bool,),
        results=(bool, torch.SymBool),
        is_number=True,
    ),
    _INT,
    replace(_INT, annotation=torch.SymInt),
    Row(
        float,
        ArgumentType("float"),
        (0.5, float("inf")),
        has_list_of_optional=True,
        letter="F",
        defaults=(bool, int, float),
        results=(float, int, torch.SymFloat),
        is_number=True,
        lists_take_tensors=True,
    ),
    Row(
        complex,
        ArgumentType("complex"),
        (1 + 2j, 2 + 0j),
        has_list_of_optional=True,
        letter="=",
        defaults=(bool, int, float, complex),
        is_number=True,
        lists_take_tensors=True,
    ),
    Row(
        torch.types.Number,
        ArgumentType("Scalar"),
        (3, 2.5, 1j, True),
        defaults=(bool, int, float, complex),
        results=(int, float, complex, bool, torch.SymInt, torch.SymFloat),
    ),
    Row(
        str,
        ArgumentType("str"),
        ("plain", 'a "quote"'),
        has_list_of_optional=True,
        letter="=",
        defaults=(str,),
    ),
    Row(
        torch.dtype,
        ArgumentType("ScalarType"),
        (torch.float32, torch.bool),
        letter="t",
        code=torch.dtype,
        defaults=(torch.dtype,),
    ),
    Row(
        torch.device,
        ArgumentType("Device"),
        (torch.device("cpu"), torch.device("meta")),
        letter="t",
        defaults=(torch.device, str),
        normalize=conversions.device,
    ),
    Row(
        torch.layout,
        ArgumentType("Layout"),
        (torch.strided, torch.sparse_csr),
        has_list=False,
        letter="t",
        code=torch.layout,
        defaults=(torch.layout,),
    ),
    Row(
        torch.memory_format,
        ArgumentType("MemoryFormat"),
        (torch.channels_last, torch.preserve_format),
        has_list=False,
        letter="t",
        code=torch.memory_format,
        defaults=(torch.memory_format,),
    ),
    Row(
        torch.qscheme,
        conversions.constant(torch.qscheme),  # the dispatcher has QScheme, which takes integers only
        (torch.per_tensor_affine, torch.per_channel_symmetric),
        letter="t",
    ),
    Row(
        torch.Size,
        ArgumentType("SymInt[]", conversions.sizes, torch.Size),
        (torch.Size([2, 3]),),
        has_list=False,
    ),
    Row(
        torch.Generator,
        ArgumentType("Generator", conversions.generator),
        has_list=False,
        defaults=(torch.Generator,),
    ),
)
