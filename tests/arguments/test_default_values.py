"""Defaults of every kind: what a call leaves out, kernels and rules get as it was declared, in every mode."""

import enum
import math
from collections.abc import Callable
from typing import Literal

import pytest
import torch
from arguments.leaf_ops import weight
from expecttest import assert_expected_inline
from messages.shown import message
from tables import each
from torch import Tensor
from torch.testing import assert_close
from ways import all_of, every_eager_way, every_graph

from custom_autograd import CustomOp, Sample, custom_op

X = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
SIZE = torch.Size([2, 3])


class Side(enum.IntEnum):
    """An int, too."""

    LEFT = 0
    RIGHT = 1


DEFAULTS = {
    "int": (int, 3),
    "float": (float, 2.5),
    "minus zero": (float, -0.0),
    "infinity": (float, math.inf),
    "minus infinity": (float, -math.inf),
    "nan": (float, math.nan),
    "denormal": (float, 5e-324),
    "infinity or None": (float | None, math.inf),
    "complex": (complex, 1 + 2j),
    "bool": (bool, True),
    "str": (str, "plain"),
    "quotes": (str, """a 'single' and a "double" quote"""),
    "backslashes and newlines": (str, "back\\slash\nnew line\ttab"),
    "unicode": (str, "naïve ∂ 🙂"),
    "punctuation": (str, "a, b) -> (c"),
    "empty str": (str, ""),
    "quotes or None": (str | None, 'a "quote"'),
    "list of int": (list[int], [1, 2]),
    "tuple of int": (tuple[int, int], (1, 2)),
    "list of infinities": (list[float], [math.inf, 1.0]),
    "list of bool": (list[bool], [True, False]),
    "list of str": (list[str], ["a", 'b"']),
    "list or None": (list[int] | None, [1]),
    "empty list": (list[int], []),
    "empty list of str": (list[str], []),
    "size": (torch.Size, SIZE),
    "dtype": (torch.dtype, torch.float8_e4m3fn),
    "device": (torch.device, torch.device("cuda", 1)),
    "layout": (torch.layout, torch.sparse_coo),
    "memory format": (torch.memory_format, torch.channels_last),
    "qscheme": (torch.qscheme, torch.per_channel_symmetric),
    "list of qschemes": (list[torch.qscheme], [torch.per_tensor_affine]),
    "list of complex": (list[complex], [1j, complex(math.inf, 1.0)]),
    "list of numbers": (list[int | float | complex], [1, 2.5, 3j]),
    "enum": (Side, Side.RIGHT),
    "list of enums": (list[Side], [Side.RIGHT]),
    "literal": (Literal["a", "b"], "b"),
    "literal of several types": (Literal["a", 1], "a"),
    "nothing": (float | None, None),
}
ROWS = each("name", DEFAULTS)


def declare(name: str) -> CustomOp[..., Tensor]:
    """X times a number that says what the kernel was given, if it is `value` that is left out, or `after` too."""
    annotation, default = DEFAULTS[name]

    def scale(x: Tensor, before: int = 1, value: object = default, after: float = 2.0) -> Tensor:
        return x * before * weight(value) * after

    scale.__annotations__["value"] = annotation
    op: CustomOp[..., Tensor] = custom_op(f"defaults::{name.replace(' ', '_')}", scale)

    @op.register_fake
    def _(x, before, value, after):
        assert repr(value) == repr(default)
        return torch.empty_like(x)

    @op.register_backward
    def _(grad, before, value, after):
        return grad * before * weight(value) * after

    @op.register_samples
    def _(make):
        yield Sample(make(3))

    return op


OPS: dict[str, Callable[..., Tensor]] = {name: declare(name) for name in DEFAULTS}


def factor(name):
    return weight(DEFAULTS[name][1])


@ROWS
def test_eager(name):
    assert_close(OPS[name](X), X * factor(name) * 2)
    assert_close(OPS[name](X, after=3.0), X * factor(name) * 3)
    assert_close(OPS[name](X, 5, DEFAULTS[name][1]), X * factor(name) * 10)


@ROWS
def test_gradcheck(name):
    assert torch.autograd.gradcheck(OPS[name], X.clone().requires_grad_())


@ROWS
@every_eager_way
def test_values_and_derivatives_in_every_way(name, way, plainly):
    assert_close(way(OPS[name], X), plainly(lambda x: x * factor(name) * 2, X))


@every_graph
def test_values_and_gradients_in_graphs(way, plainly):
    assert_close(way(all_of(OPS.values()), X), plainly(lambda x: [x * factor(name) * 2 for name in OPS], X))


def is_filled(name):
    return any(argument.is_filled for argument in OPS[name].schema.arguments)


@each("name", [name for name in DEFAULTS if not is_filled(name)])
def test_torch_ops(name):
    assert_close(getattr(torch.ops.defaults, name.replace(" ", "_"))(X, after=3.0), X * factor(name) * 3)


def test_torch_ops_must_give_what_no_schema_can_spell():
    names = ["infinity or None", "quotes or None", "list or None"]

    assert names == [name for name in DEFAULTS if is_filled(name)]
    with pytest.raises(RuntimeError, match="missing value for argument 'before'"):
        torch.ops.defaults.list_or_None(X)


@each("name", ["infinity or None", "enum"])
def test_check(name):
    OPS[name].check(checks=["schema", "gradcheck", "vmap", "opcheck", "compile", "export"], isolated=False)


def test_schemas():
    names = ("float", "nan", "infinity or None", "enum", "qscheme", "list of complex")
    spelled = "\n".join(f"{name}: {OPS[name].schema.text}" for name in names)

    assert_expected_inline(
        spelled,
        """\
float: (Tensor x, SymInt before=1, float value=2.5, float after=2.0) -> Tensor
nan: (Tensor x, SymInt before=1, float? value=None, float after=2.0) -> Tensor
infinity or None: (Tensor x, SymInt before, float? value, float after=2.0) -> Tensor
enum: (Tensor x, SymInt before=1, str value="RIGHT", float after=2.0) -> Tensor
qscheme: (Tensor x, SymInt before=1, str value="per_channel_symmetric", float after=2.0) -> Tensor
list of complex: (Tensor x, SymInt before=1, complex[]? value=None, float after=2.0) -> Tensor""",
    )


@custom_op("defaults::lists")
def lists(x: Tensor, others: list[Tensor] = []) -> Tensor:  # noqa: B006 - the point
    return x + len(others)


def test_an_empty_list_of_tensors():
    assert_close(lists(X), X)
    assert_close(lists(X, [X]), X + 1)


def test_the_default_is_not_shared_with_kernels():
    seen = []

    def keep(x: Tensor, sizes: list[int] = [1, 2]) -> Tensor:  # noqa: B006 - the point
        sizes.append(3)
        seen.append(len(sizes))
        return x * 1

    op = custom_op("defaults::shared", keep)
    op(X)
    op(X)

    assert [3, 3] == seen


def test_none_for_what_cannot_be_none():
    found = message(lambda: OPS["infinity"](X, value=None)).partition("\n")[0]

    assert_expected_inline(found, """KernelError: defaults::infinity: argument 'value': expected a value, found None""")


def test_a_nan_passed_explicitly_is_that_of_the_call():
    assert_close(OPS["nan"](X, value=math.nan), OPS["nan"](X))
