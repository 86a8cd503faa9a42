"""Whatever one argument can be, kernels and rules see it as the call passed it, in every mode and by value."""

# ruff: noqa: E501 - a message is as long as it is

import io
import re
from typing import Literal

import pytest
import torch
from arguments.leaf_ops import LEAVES, OPS, Access, Level, Padding, Side, weight
from expecttest import assert_expected_inline
from messages.shown import message, on_lines, together
from tables import each
from torch import Tensor
from torch.testing import assert_close
from ways import Calls, all_of, every_eager_way, every_graph

from custom_autograd import KernelError, custom_op
from custom_autograd.schema.types import find_argument_type

ROWS = each("name", LEAVES)
X = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


def mixed(x: Tensor, value: Literal["auto", 3]) -> Tensor:
    return x * 1


def literal_or_none(x: Tensor, value: Literal["a", "b", None]) -> Tensor:
    return x * 1


def member_or_none(x: Tensor, value: Literal[Side.LEFT, None]) -> Tensor:
    return x * 1


def call_of(name):
    """The op as a function of its tensor, and the number that it multiplies with."""
    return lambda x: OPS[name](x, LEAVES[name].value), weight(LEAVES[name].seen)


@ROWS
def test_spelling(name):
    assert LEAVES[name].spelling == find_argument_type(LEAVES[name].annotation).spelling


@ROWS
@every_eager_way
def test_values_and_derivatives_in_every_way(name, way, plainly):
    op, factor = call_of(name)

    assert_close(way(op, X), plainly(lambda x: x * factor, X))


@every_graph
def test_values_and_gradients_in_graphs(way, plainly):
    ops, factors = zip(*map(call_of, LEAVES), strict=True)

    assert_close(way(all_of(ops), X), plainly(lambda x: [x * factor for factor in factors], X))


@ROWS
def test_a_kernel_of_another_device_type_sees_the_same(name):
    op, factor = call_of(name)
    seen = []
    OPS[name].register_kernel("cpu", lambda x, value: (seen.append(value), x * 1)[1], replace=True)
    try:
        op(X)
        op(X.clone().requires_grad_())
    finally:
        OPS[name].register_kernel("cpu", lambda x, value: x * weight(value), replace=True)

    assert [factor, factor] == [weight(value) for value in seen]


@ROWS
def test_gradcheck(name):
    op, _ = call_of(name)

    assert torch.autograd.gradcheck(op, X.clone().requires_grad_(), check_forward_ad=True)


def test_values_that_a_compiled_function_is_given(fresh_compiler):
    def call(x, values):
        return [OPS[name](x, value) for name, value in values.items()]

    x, factors = X.clone().requires_grad_(), [weight(row.seen) for row in LEAVES.values()]
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=False)
    actual = compiled(x, {name: row.value for name, row in LEAVES.items()})

    assert_close(actual, [x * factor for factor in factors])
    for result, factor in zip(actual, factors, strict=True):
        assert_close(torch.autograd.grad(result.sum(), x, retain_graph=True), (torch.full_like(X, factor),))


def test_export_to_a_file():
    ops, factors = zip(*(call_of(name) for name, row in LEAVES.items() if row.is_saved), strict=True)
    file = io.BytesIO()
    torch.export.save(torch.export.export(Calls(all_of(ops)), (X,)), file)
    file.seek(0)

    assert_close(torch.export.load(file).module()(X), [X * factor for factor in factors])


@each("name", [name for name, row in LEAVES.items() if not row.is_saved])
@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch 2.11 writes dtypes in lists as numbers")
def test_what_torch_cannot_write_to_a_file_it_refuses(name):
    op, _ = call_of(name)

    with pytest.raises(Exception, match="Failed serializing node"):
        torch.export.save(torch.export.export(Calls(op), (X,)), io.BytesIO())


@pytest.mark.parametrize("name", ["enum of strings", "flags", "pair or None", "literal of several types"])
def test_check(name):
    OPS[name].check(checks=["schema", "fake", "gradcheck", "vmap", "opcheck", "compile", "export"], isolated=False)


# ----------------------------------------------------------------------------------------------------------- messages


def refused(name, value):
    return re.sub(r"leaf_ops.py:\d+", "FILE.py:LINE", message(lambda: OPS[name](X, value)))


def test_name_of_no_member():
    assert_expected_inline(
        refused("enum", "UP"),
        """\
KernelError: leaves::enum: argument 'value': expected one of Side.LEFT, Side.RIGHT, Side.SINISTER, found 'UP'
  declared   FILE.py:LINE
  do         pass Side.LEFT, for example""",
    )


WRONG = [
    ("enum", "UP"),
    ("enum of strings", "same size"),
    ("flags", 3),
    ("literal of int", True),
    ("literal of bool", 1),
    ("literal of enums", Side.RIGHT),
    ("pair", (1, 2, 3)),
    ("list of str", "abc"),
    ("list of enums", Side.LEFT),
    ("tuple of dtypes", (torch.half, 3)),
    ("qscheme", 2),
    ("list of qschemes", [torch.per_tensor_affine, torch.int8]),
    ("enum", Level.LOW),
    ("enum of integers", 1),
    ("flags", Padding.SAME),
    ("literal or None", "c"),
    ("list of literals", ["r"]),
]


def test_what_does_not_fit_each_type():
    """True is not 1, "abc" is no list of strings, which the dispatcher takes it for, and an Enum is not its value."""
    assert_expected_inline(
        on_lines(*(refused(*row) for row in WRONG)),
        """\
leaves::enum: argument 'value': expected one of Side.LEFT, Side.RIGHT, Side.SINISTER, found 'UP' | do pass Side.LEFT, for example
leaves::enum_of_strings: argument 'value': expected one of Padding.ZEROS, Padding.SAME, found 'same size' | do pass Padding.ZEROS, for example
leaves::flags: argument 'value': expected Access.READ, Access.WRITE, or several joined by |, found 3 | do pass Access.READ, for example
leaves::literal_of_int: argument 'value': expected one of 1, 2, found True | do pass 1, for example
leaves::literal_of_bool: argument 'value': expected one of True, found 1 | do pass True, for example
leaves::literal_of_enums: argument 'value': expected one of Side.LEFT, found <Side.RIGHT: 2> | do pass Side.LEFT, for example
leaves::pair: argument 'value': expected a tuple of length 2, found (1, 2, 3) | do pass (3, 3), for example
leaves::list_of_str: argument 'value': expected a list or a tuple, found 'abc' | do pass ['text'], for example
leaves::list_of_enums: argument 'value': expected a list or a tuple, found <Side.LEFT: 1> | do pass [Side.LEFT], for example
leaves::tuple_of_dtypes: argument 'value': expected a torch.dtype, found 3 | do pass (torch.float32, torch.float32), for example
leaves::qscheme: argument 'value': expected a torch.qscheme, found 2 | do pass torch.per_tensor_affine, for example
leaves::list_of_qschemes: argument 'value': expected a torch.qscheme, found torch.int8 | do pass [torch.per_tensor_affine], for example
leaves::enum: argument 'value': expected one of Side.LEFT, Side.RIGHT, Side.SINISTER, found <Level.LOW: 0> | do pass Side.LEFT, for example
leaves::enum_of_integers: argument 'value': expected one of Level.LOW, Level.HIGH, found 1 | do pass Level.LOW, for example
leaves::flags: argument 'value': expected Access.READ, Access.WRITE, or several joined by |, found <Padding.SAME: 'same size'> | do pass Access.READ, for example
leaves::literal_or_None: argument 'value': expected one of 'a', 'b', None, found 'c' | do pass 'a', for example
leaves::list_of_literals: argument 'value': expected one of 'p', 'q', found 'r' | do pass ['p'], for example""",
    )


@each(
    "function, wrong, expected",
    [(literal_or_none, "z", "'a', 'b', None"), (member_or_none, Side.RIGHT, "Side.LEFT, None")],
)
def test_a_literal_with_none(function, wrong, expected):
    op = custom_op(f"leaves::{function.__name__}", function, replace=True)

    with pytest.raises(KernelError, match=re.escape(f"expected one of {expected}, found {wrong!r}")):
        op(X, wrong)


def test_texts_of_no_value_by_way_of_torch_ops():
    custom_op("leaves::mixed", mixed, replace=True)

    assert_expected_inline(
        together(
            message(lambda: torch.ops.leaves.enum(X, "UP")),
            message(lambda: torch.ops.leaves.mixed(X, "'low'")),
            message(lambda: torch.ops.leaves.qscheme(X, "per_row")).partition("\n")[0],
        ),
        """\
KernelError
Side: 'UP' is not a value of an argument that travels as text
  expected   one of 'LEFT', 'RIGHT', 'SINISTER'
  do         give torch.ops one of the texts above, or call the op itself, which takes the values
Literal['auto', 3]: "'low'" is not a value of an argument that travels as text
  expected   one of "'auto'", '3'
  do         give torch.ops one of the texts above, or call the op itself, which takes the values
torch.qscheme: 'per_row' is not a value of an argument that travels as text""",
    )


@custom_op("leaves::open")
def opened(x: Tensor, access: Access = Access.READ) -> Tensor:
    return x * access.value


@opened.register_fake
def _(x, access):
    return torch.empty_like(x)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="Dynamo of torch 2.11 leaves out what an exception says")
def test_a_refusal_is_told_under_compilation(fresh_compiler):
    compiled = torch.compile(lambda x: opened(x, 3), fullgraph=True, backend="eager")

    with pytest.raises(Exception, match=r"argument 'access': expected Access.READ, Access.WRITE"):
        compiled(X)


def test_the_dispatcher_takes_the_name(fresh_compiler):
    assert_close(torch.ops.leaves.enum(X, "RIGHT"), X * weight(Side.RIGHT))


# ------------------------------------------------------------------------------------------- sizes that are symbols


@custom_op("leaves::fill")
def fill(x: Tensor, size: torch.Size, pads: tuple[int, int] = (1, 2)) -> Tensor:
    assert isinstance(size, torch.Size)
    assert isinstance(pads, tuple)
    return x.sum() * x.new_ones((size[0] + pads[0], pads[1]))


@fill.register_fake
def _(x, size, pads):
    assert isinstance(size, torch.Size)
    assert isinstance(pads, tuple)
    return x.new_empty((size[0] + pads[0], pads[1]))


@fill.register_backward
def _(grad, x, size, pads):
    assert isinstance(size, torch.Size)
    return (grad.sum() * (size[0] + pads[0]) / (size[0] + pads[0])).expand_as(x)


def test_sizes_and_tuples_of_symbols_compile_once(fresh_compiler):
    compiled = torch.compile(lambda x, n: fill(x, x.shape, (n, n)), fullgraph=True, backend="aot_eager", dynamic=True)
    compiled(torch.ones(3, requires_grad=True), 2)

    with torch.compiler.set_stance("fail_on_recompile"):
        for length in range(4, 9):
            x = torch.ones(length, requires_grad=True)
            expected = torch.full((2 * length, length), float(length))
            assert_close(compiled(x, length), expected)
            assert_close(torch.autograd.grad(compiled(x, length).sum(), x), (torch.ones(length) * 2 * length**2,))


def test_sizes_of_symbols_are_exported():
    length = torch.export.Dim("length", min=2, max=100)
    module = Calls(lambda x: fill(x, x.shape))
    program = torch.export.export(module, (torch.ones(3),), dynamic_shapes=(({0: length},),))

    assert_close(program.module()(torch.ones(5)), torch.full((6, 2), 5.0))
