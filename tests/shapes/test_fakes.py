"""A fake that follows from a line: empty, contiguous outputs of its sizes, in the dtypes that are declared."""

import re

import pytest
import torch
from expecttest import assert_expected_inline
from tables import each
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from custom_autograd import custom_op
from custom_autograd.core.errors import FakeUnavailable, KernelError, ShapeError


@custom_op(
    "shapes_fakes::norm",
    outputs=("out", "rstd", "place", "like_weight"),
    shapes="x: *b [d], weight: [d] -> out: *b [d], rstd: *b 1, place: *b, like_weight: (2 d)",
    dtypes={"rstd": "wide", "place": torch.int64, "like_weight": "weight"},
)
def norm(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rstd = x.to(torch.promote_types(x.dtype, torch.float32)).square().mean(-1, keepdim=True).rsqrt()
    return (x * rstd).to(x.dtype), rstd, rstd.squeeze(-1).long(), torch.cat((weight, weight))


def faked(op, *tensors):
    with FakeTensorMode() as mode:
        return op(*map(mode.from_tensor, tensors))


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [(torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float32,) * 2, (torch.float64,) * 2],
    ids=str,
)
def test_dtypes_are_those_that_are_declared(dtype, wide):
    found = faked(norm, torch.ones(2, 3, 4, dtype=dtype), torch.ones(4, dtype=torch.int32))

    assert [dtype, wide, torch.int64, torch.int32] == [output.dtype for output in found]


@pytest.mark.parametrize("batch", [(), (3,), (2, 0), (2, 3, 5)], ids=str)
def test_fake_has_the_shapes_of_the_kernel(batch):
    tensors = torch.ones(*batch, 4), torch.ones(4)

    assert [output.shape for output in norm(*tensors)] == [output.shape for output in faked(norm, *tensors)]


def test_outputs_are_contiguous_for_strided_inputs():
    found = faked(norm, torch.ones(4, 3).T, torch.ones(4))

    assert all(output.is_contiguous() for output in found)


def test_wrong_sizes_are_refused():
    with pytest.raises(ShapeError, match=r"'weight' must be \(d\) with d = 4"):
        faked(norm, torch.ones(2, 4), torch.ones(3))


def test_sizes_stay_symbolic():
    compiled = torch.compile(lambda x, w: norm(x, w)[1], fullgraph=True, backend="eager", dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (3, 5, 8):
            x = torch.ones(rows, 4)
            assert torch.equal(norm(x, torch.ones(4))[1], compiled(x, torch.ones(4)))


@custom_op("shapes_fakes::products", shapes="x: (2 h) [s+1], y: #h -> output: h [s]")
def products(x: Tensor, y: Tensor) -> Tensor:
    return x[: len(x) // 2, 1:] * y.unsqueeze(-1)


def test_sizes_of_products_and_sums_stay_symbolic():
    torch.compiler.reset()  # what other tests compiled counts as a recompilation
    compiled = torch.compile(products, fullgraph=True, backend="eager", dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for h, s in ((3, 4), (5, 7), (6, 5)):
            x = torch.ones(2 * h, s + 1)
            assert (h, s) == compiled(x, torch.ones(h)).shape


@custom_op("shapes_fakes::open", shapes="x: [n] -> output: _")
def positive(x: Tensor) -> Tensor:
    return x[x > 0]


def test_line_that_leaves_a_size_open_gives_no_fake():
    assert "missing: register_fake" == positive.capabilities()["fake"]
    with pytest.raises(FakeUnavailable, match="no fake is registered"):
        faked(positive, torch.ones(3))


@custom_op("shapes_fakes::made", shapes="-> output: [n]")
def made(n: int) -> Tensor:
    return torch.ones(n)


def test_op_without_tensors_has_no_fake():
    """Nothing says the device."""
    assert "missing: register_fake" == made.capabilities()["fake"]
    with FakeTensorMode(), pytest.raises(FakeUnavailable, match="no fake is registered"):
        made(3)


@custom_op("shapes_fakes::cast", shapes="x: n -> output: n", dtypes={"output": "dtype"})
def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype, copy=True)


def test_dtype_of_an_argument():
    with FakeTensorMode() as mode:
        assert torch.float16 == cast(mode.from_tensor(torch.ones(2)), torch.float16).dtype


@custom_op("shapes_fakes::rows", shapes="index: n, table: [m] d -> rows: n d")
def rows(index: Tensor, table: Tensor) -> Tensor:
    return table[index].contiguous()


@rows.register_backward
def _(grad, index, table):
    return {"table": torch.zeros_like(table).index_add(0, index, grad)}


INDEX = torch.tensor([0, 2, 1, 1])


def doubled(table):
    return rows(INDEX, table) * 2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_an_integer_index_in_front_does_not_decide_the_dtype(backend):
    """A fake in int64 has half of the memory that Inductor needs, and no gradient."""
    torch.compiler.reset()
    table = torch.arange(12.0).reshape(3, 4).requires_grad_()

    found = torch.compile(doubled, backend=backend, fullgraph=True)(table)
    found.sum().backward()

    assert torch.equal(doubled(table.detach()), found)
    assert torch.equal(torch.tensor([2.0, 4.0, 2.0])[:, None].expand(3, 4), table.grad)


def test_dtype_of_an_integer_index_under_a_compiled_transform():
    torch.compiler.reset()
    table = torch.ones(3, 4)
    gradient = torch.func.grad(lambda table: doubled(table).sum())

    found = torch.compile(gradient, backend="aot_eager", fullgraph=True)(table)

    assert torch.equal(gradient(table), found)


@custom_op("shapes_fakes::joined", shapes="x: n, y: n -> out: n")
def joined(x: Tensor, y: Tensor) -> Tensor:
    return (x + y).to(x.dtype)


@each(
    ("dtypes", "expected"),
    [
        ((torch.int64, torch.float16), torch.float16),
        ((torch.bool, torch.complex64), torch.complex64),
        ((torch.int32, torch.int32), torch.int32),
        ((torch.float32, torch.float64), None),
        ((torch.float32, torch.complex64), None),
        ((torch.int32, torch.int64), None),
        ((torch.bool, torch.int64), None),
    ],
)
def test_dtype_that_nothing_says_is_refused(dtypes, expected):
    tensors = [torch.ones(2, dtype=dtype) for dtype in dtypes]
    if expected is None:
        with pytest.raises(FakeUnavailable, match="does not say the dtype of 'out'"):
            faked(joined, *tensors)
    else:
        assert expected == faked(joined, *tensors).dtype


def test_message_of_a_dtype_that_nothing_says():
    with pytest.raises(FakeUnavailable) as caught:
        faked(joined, torch.ones(2, dtype=torch.bfloat16), torch.ones(2))

    assert_expected_inline(
        re.sub(r":\d+", ":N", str(caught.value)),
        """\
shapes_fakes::joined: the line of shapes does not say the dtype of 'out', and the inputs have several
  expected   one dtype among the floating and complex inputs, or among integer inputs alone
  found      'x' torch.bfloat16, 'y' torch.float32
  rule       x: n, y: n -> out: n  (test_fakes.py:N)
  declared   test_fakes.py:N
  do         add dtypes={'out': ...}: a torch.dtype, 'wide', or one of 'x', 'y'; or register_fake""",
    )


@custom_op("shapes_fakes::positive", shapes="x: n -> out: n")
def is_positive(x: Tensor) -> Tensor:
    return x > 0


@pytest.mark.parametrize("requires_grad", [False, True])
def test_output_of_another_dtype_than_the_line_says_is_refused(requires_grad):
    """Compiled code would take its memory for that of another dtype."""
    with pytest.raises(KernelError) as caught:
        is_positive(torch.ones(2, requires_grad=requires_grad))

    assert_expected_inline(
        re.sub(r":\d+", ":N", str(caught.value)),
        """\
shapes_fakes::positive: the default kernel, test_fakes.py:N, returns another dtype as 'out' than the op's line says
  expected   torch.float32, as the inputs have
  found      torch.bool
  rule       x: n -> out: n  (test_fakes.py:N)
  declared   test_fakes.py:N
  do         write dtypes={'out': torch.bool}, or the name of an input that always has it""",
    )


def test_compiled_code_does_not_see_an_output_of_another_dtype():
    torch.compiler.reset()
    with pytest.raises(KernelError, match="returns another dtype as 'out'"):
        torch.compile(lambda x: is_positive(x) + 1, fullgraph=True)(torch.ones(3))


@custom_op("shapes_fakes::single", shapes="x: n -> out: n", dtypes={"out": torch.float32})
def single(x: Tensor) -> Tensor:
    return x + 1


def test_each_dtype_of_the_inputs_is_looked_at():
    for _ in range(3):
        assert torch.equal(torch.full((2,), 2.0), single(torch.ones(2)))
    for call in (single, torch.ops.shapes_fakes.single):
        with pytest.raises(KernelError, match="returns another dtype as 'out'"):
            call(torch.ones(2, dtype=torch.float64))
