"""Whatever one argument can be, kernels and rules see it as the call passed it, in every mode and by value."""

import io
import re
from typing import Literal

import pytest
import torch
from arguments.leaf_ops import LEAVES, OPS, Access, Level, Padding, Side, weight
from expecttest import assert_expected_inline
from messages.shown import message
from torch import Tensor
from torch.testing import assert_close

from custom_autograd import custom_op
from custom_autograd.schema.types import find_argument_type

ROWS = pytest.mark.parametrize("name", LEAVES)
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
def test_eager(name):
    op, factor = call_of(name)

    assert_close(op(X), X * factor)


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
def test_backward(name):
    op, factor = call_of(name)
    x = X.clone().requires_grad_()

    assert_close(torch.autograd.grad(op(x).sum(), x), (torch.full_like(X, factor),))


@ROWS
def test_gradcheck(name):
    op, _ = call_of(name)

    assert torch.autograd.gradcheck(op, X.clone().requires_grad_(), check_forward_ad=True)


@ROWS
def test_torch_func(name):
    op, factor = call_of(name)

    assert_close(torch.func.grad(lambda x: op(x).sum())(X), torch.full_like(X, factor))
    assert_close(torch.func.jvp(op, (X,), (X,)), (X * factor, X * factor))
    assert_close(torch.func.vjp(op, X)[1](X), (X * factor,))


@ROWS
def test_vmap(name):
    op, factor = call_of(name)

    assert_close(torch.vmap(op)(torch.stack([X, X + 1])), torch.stack([X, X + 1]) * factor)


@ROWS
def test_compile(name, fresh_compiler):
    op, factor = call_of(name)
    x = X.clone().requires_grad_()
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")

    assert_close(compiled(x), x * factor)
    assert_close(torch.autograd.grad(compiled(x).sum(), x), (torch.full_like(X, factor),))


@ROWS
def test_compile_with_the_value_as_an_input(name, fresh_compiler):
    compiled = torch.compile(OPS[name], fullgraph=True, backend="aot_eager", dynamic=False)

    assert_close(compiled(X, LEAVES[name].value), X * weight(LEAVES[name].seen))


@ROWS
def test_export(name):
    op, factor = call_of(name)
    program = torch.export.export(Module(op), (X,))

    assert_close(program.module()(X), X * factor)


@pytest.mark.parametrize("name", [name for name, row in LEAVES.items() if row.is_saved])
def test_export_to_a_file(name):
    op, factor = call_of(name)
    file = io.BytesIO()
    torch.export.save(torch.export.export(Module(op), (X,)), file)
    file.seek(0)

    assert_close(torch.export.load(file).module()(X), X * factor)


@pytest.mark.parametrize("name", [name for name, row in LEAVES.items() if not row.is_saved])
@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch 2.11 writes dtypes in lists as numbers")
def test_what_torch_cannot_write_to_a_file_it_refuses(name):
    op, _ = call_of(name)

    with pytest.raises(Exception, match="Failed serializing node"):
        torch.export.save(torch.export.export(Module(op), (X,)), io.BytesIO())


@pytest.mark.parametrize("name", ["enum of strings", "flags", "pair or None", "literal of several types"])
def test_check(name):
    OPS[name].check(checks=["schema", "fake", "gradcheck", "vmap", "opcheck", "compile", "export"])


class Module(torch.nn.Module):
    """A function as a module, as export wants it."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


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


def test_value_of_a_member():
    assert_expected_inline(
        refused("enum of strings", "same size"),
        """\
KernelError: leaves::enum_of_strings: argument 'value': expected one of Padding.ZEROS, Padding.SAME, found 'same size'
  declared   FILE.py:LINE
  do         pass Padding.ZEROS, for example""",
    )


def test_number_for_flags():
    assert_expected_inline(
        refused("flags", 3),
        """\
KernelError: leaves::flags: argument 'value': expected Access.READ, Access.WRITE, or several joined by |, found 3
  declared   FILE.py:LINE
  do         pass Access.READ, for example""",
    )


def test_name_of_no_member_by_way_of_torch_ops():
    assert_expected_inline(
        message(lambda: torch.ops.leaves.enum(X, "UP")),
        """\
KernelError: Side: 'UP' stands for no value of an argument that travels as text
  expected   one of 'LEFT', 'RIGHT', 'SINISTER'
  do         give torch.ops one of the texts above, or call the op itself, which takes the values""",
    )


def test_text_of_no_value_by_way_of_torch_ops():
    custom_op("leaves::mixed", mixed, replace=True)

    assert_expected_inline(
        message(lambda: torch.ops.leaves.mixed(X, "'low'")),
        """\
KernelError: Literal['auto', 3]: "'low'" stands for no value of an argument that travels as text
  expected   one of "'auto'", '3'
  do         give torch.ops one of the texts above, or call the op itself, which takes the values""",
    )


def test_literal_with_none():
    op = custom_op("leaves::literal_or_none", literal_or_none, replace=True)

    assert_expected_inline(
        message(lambda: op(X, "z")),
        """\
KernelError: leaves::literal_or_none: argument 'value': expected one of 'a', 'b', None, found 'z'
  declared   FILE.py:LINE
  do         pass 'a', for example""",
    )


def test_literal_of_members_with_none():
    op = custom_op("leaves::member_or_none", member_or_none, replace=True)

    assert_expected_inline(
        message(lambda: op(X, Side.RIGHT)),
        """\
KernelError: leaves::member_or_none: argument 'value': expected one of Side.LEFT, None, found <Side.RIGHT: 2>
  declared   FILE.py:LINE
  do         pass Side.LEFT, for example""",
    )


def test_true_is_not_one():
    assert_expected_inline(
        refused("literal of int", True),
        """\
KernelError: leaves::literal_of_int: argument 'value': expected one of 1, 2, found True
  declared   FILE.py:LINE
  do         pass 1, for example""",
    )


def test_one_is_not_true():
    assert_expected_inline(
        refused("literal of bool", 1),
        """\
KernelError: leaves::literal_of_bool: argument 'value': expected one of True, found 1
  declared   FILE.py:LINE
  do         pass True, for example""",
    )


def test_other_member_of_a_literal():
    assert_expected_inline(
        refused("literal of enums", Side.RIGHT),
        """\
KernelError: leaves::literal_of_enums: argument 'value': expected one of Side.LEFT, found <Side.RIGHT: 2>
  declared   FILE.py:LINE
  do         pass Side.LEFT, for example""",
    )


def test_tuple_of_another_length():
    assert_expected_inline(
        refused("pair", (1, 2, 3)),
        """\
KernelError: leaves::pair: argument 'value': expected a tuple of length 2, found (1, 2, 3)
  declared   FILE.py:LINE
  do         pass (3, 3), for example""",
    )


def test_str_for_a_list_of_str():
    """The dispatcher takes "abc" for ["a", "b", "c"]."""
    assert_expected_inline(
        refused("list of str", "abc"),
        """\
KernelError: leaves::list_of_str: argument 'value': expected a list or a tuple, found 'abc'
  declared   FILE.py:LINE
  do         pass ['text'], for example""",
    )


def test_member_for_a_list_of_members():
    assert_expected_inline(
        refused("list of enums", Side.LEFT),
        """\
KernelError: leaves::list_of_enums: argument 'value': expected a list or a tuple, found <Side.LEFT: 1>
  declared   FILE.py:LINE
  do         pass [Side.LEFT], for example""",
    )


def test_integer_for_a_dtype_in_a_tuple():
    assert_expected_inline(
        refused("tuple of dtypes", (torch.half, 3)),
        """\
KernelError: leaves::tuple_of_dtypes: argument 'value': expected a torch.dtype, found 3
  declared   FILE.py:LINE
  do         pass (torch.float32, torch.float32), for example""",
    )


def test_number_for_a_qscheme():
    assert_expected_inline(
        refused("qscheme", 2),
        """\
KernelError: leaves::qscheme: argument 'value': expected a torch.qscheme, found 2
  declared   FILE.py:LINE
  do         pass torch.per_tensor_affine, for example""",
    )


def test_dtype_in_a_list_of_qschemes():
    assert_expected_inline(
        refused("list of qschemes", [torch.per_tensor_affine, torch.int8]),
        """\
KernelError: leaves::list_of_qschemes: argument 'value': expected a torch.qscheme, found torch.int8
  declared   FILE.py:LINE
  do         pass [torch.per_tensor_affine], for example""",
    )


def test_name_of_no_qscheme_by_way_of_torch_ops():
    assert_expected_inline(
        message(lambda: torch.ops.leaves.qscheme(X, "per_row")).partition("\n")[0],
        """KernelError: torch.qscheme: 'per_row' stands for no value of an argument that travels as text""",
    )


@pytest.mark.parametrize(("name", "value"), [("enum", Level.LOW), ("enum of integers", 1), ("flags", Padding.SAME),
                                             ("literal or None", "c"), ("list of literals", ["r"])])  # fmt: skip
def test_a_refusal_names_what_there_is(name, value):
    assert "expected " in refused(name, value)


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
    module = Module(lambda x: fill(x, x.shape))
    program = torch.export.export(module, (torch.ones(3),), dynamic_shapes={"x": {0: length}})

    assert_close(program.module()(torch.ones(5)), torch.full((6, 2), 5.0))
