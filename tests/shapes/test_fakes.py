"""A fake that follows from a line: empty, contiguous outputs of its sizes, in the dtypes that are declared."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from custom_autograd import custom_op
from custom_autograd.core.errors import FakeUnavailable, ShapeError


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
    found = faked(norm, torch.ones(2, 3, 4, dtype=dtype), torch.ones(4, dtype=torch.float64))

    assert [dtype, wide, torch.int64, torch.float64] == [output.dtype for output in found]


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
