"""NumPy kernels: arrays on the tensors' memory come in, and tensors that own their memory go out."""

import functools
import pickle
import re
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import KernelError, Sample, custom_op
from custom_autograd.kernels import NumpyKernel, numpy_kernel

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.complex64, torch.complex128, torch.bool,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
]  # fmt: skip


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@numpy_kernel
def doubled(x):
    return x + x


@numpy_kernel
def identity(x):
    return x


@numpy_kernel
def parts(xs, pair, named, scale, mode=None):
    """A list, a NamedTuple and a dict."""
    return [scale * x for x in xs], Pair(pair.second.copy(), pair.first.copy()), {"out": named["in"] + 1}, mode


@custom_op("numpy_sources::cumulative", reference=True)
def cumulative(x: Tensor, scale: float = 1.0) -> Tensor:
    return torch.cumsum(x * scale, -1)


@cumulative.register_kernel("cpu")
@numpy_kernel
def _(x, scale):
    wide = np.cumsum(x * x.dtype.type(scale), axis=-1, dtype=x.dtype)
    return np.ascontiguousarray(wide)


@cumulative.register_samples
def _(make):
    yield Sample(make(3, 4), scale=2.0)
    yield Sample(make(0))


@each("dtype", DTYPES)
def test_each_dtype_of_numpy_comes_and_goes(dtype):
    x = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)

    found = numpy_kernel(np.transpose)(x)
    assert torch.equal(torch.tensor([[0, 1], [1, 0], [1, 1]]).to(dtype), found)
    assert dtype is found.dtype


def test_a_dtype_that_numpy_lacks_raises_and_names_the_argument():
    with pytest.raises(KernelError) as caught:
        doubled(torch.ones(2, dtype=torch.bfloat16))

    assert NO_BFLOAT16 == str(caught.value)


def declared(kernel, schema="(Tensor x, Tensor weight, *, Tensor? bias=None) -> Tensor", mutates=()):
    return custom_op("numpy_sources::declared", numpy_kernel(kernel), schema=schema, mutates_args=mutates, replace=True)


WRITES = {
    "item": lambda x: x.__setitem__(0, 7),
    "ufunc": lambda x: np.add(x, 1, out=x),
    "sort": lambda x: x.sort(),
    "view": lambda x: x[1:].fill(7),
    "shuffle": lambda x: np.random.default_rng(0).shuffle(x),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_to_an_argument_that_is_not_declared_raises(write):
    """At every level of validation, before anything is written."""

    def kernel(x, weight, *, bias=None):
        write(weight)
        return x + 1

    op, weight = declared(kernel), torch.tensor([2.0, 1.0])
    for call in (op, torch.ops.numpy_sources.declared):
        with pytest.raises(KernelError, match="numpy_sources::declared: the NumPy kernel writes to a read-only array"):
            call(torch.ones(2), weight)

    assert [2.0, 1.0] == weight.tolist()


def test_the_message_of_a_write_names_op_arguments_and_advice():
    def kernel(x, weight, *, bias=None):
        bias[0] = 1
        return x + 1

    with pytest.raises(KernelError) as caught:
        declared(kernel)(torch.ones(2), torch.ones(2), bias=torch.ones(2))

    assert READ_ONLY == re.sub(r":\d+$", ":LINE", str(caught.value), flags=re.MULTILINE)


@pytest.mark.parametrize("way", ["default", "registered"])
def test_a_declared_argument_is_written_to_and_the_others_are_read(way):
    schema = "(Tensor(a!) x, Tensor weight, *, Tensor(b!) total) -> ()"

    def kernel(x, weight, *, total):
        assert not weight.flags.writeable
        x += weight
        total[...] = x.sum()

    op = declared(kernel, schema, ("x", "total"))
    if way == "registered":
        op = declared(lambda x, weight, *, total: None, schema, ("x", "total"))
        op.register_kernel("cpu", numpy_kernel(kernel), layouts={"x": "contiguous"})
    x, total = torch.ones(3, 2).t(), torch.zeros(())
    op(x, torch.full((2, 3), 4.0), total=total)

    assert [[5.0] * 3] * 2 == x.tolist()
    assert 30.0 == total.item()


@pytest.mark.parametrize("way", ["default", "registered"])
def test_of_containers_those_that_are_declared_are_written_to(way):
    def kernel(cache, x):
        cache["sum"] += x["value"]
        x["value"].fill(7)

    def shape(cache: dict[str, Tensor], x: dict[str, Tensor]) -> None:
        pass

    given = numpy_kernel(functools.wraps(shape)(kernel)) if way == "default" else shape
    op = custom_op("numpy_sources::kept", given, mutates_args=("cache",), replace=True)
    if way == "registered":
        op.register_kernel("cpu", numpy_kernel(kernel))
    cache, x = {"sum": torch.ones(2)}, {"value": torch.ones(2)}
    with pytest.raises(KernelError, match="such as that of 'x'"):
        op(cache, x)

    assert [[2.0, 2.0], [1.0, 1.0]] == [cache["sum"].tolist(), x["value"].tolist()]


def test_a_library_that_asks_for_a_writable_buffer_need_not_write():
    """As each function of Cython that takes a memoryview which is not const."""

    def kernel(x, weight, *, bias=None):
        raise ValueError("buffer source array is read-only")

    with pytest.raises(KernelError) as raised:
        declared(kernel)(torch.ones(2), torch.ones(2))

    assert "the NumPy kernel asks to write to a read-only array, such as that of 'x' or 'weight'" in str(raised.value)
    assert "pass a copy, or declare the argument if it is written to (in Cython, one that is only" in str(raised.value)


@pytest.mark.parametrize("text", ["no such mode", "the file is read-only"])
def test_another_error_of_a_kernel_is_its_own(text):
    def kernel(x, weight, *, bias=None):
        raise ValueError(text)

    with pytest.raises(ValueError, match=f"^{text}"):
        declared(kernel)(torch.ones(2), torch.ones(2))


def test_containers_and_other_arguments_keep_their_form():
    x, y = torch.tensor([1.0]), torch.tensor([2.0])
    found = parts([x, y], Pair(x, y), {"in": y}, 3, mode="same")

    assert ([torch.tensor([3.0]), torch.tensor([6.0])], Pair(y, x), {"out": torch.tensor([3.0])}, "same") == found
    assert isinstance(found[1], Pair)


def test_no_numpy_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)

    with pytest.raises(KernelError, match="the kernel needs NumPy"):
        identity(torch.ones(1))


def test_a_decorated_kernel_travels_by_its_name():
    assert doubled is pickle.loads(pickle.dumps(doubled))
    assert isinstance(doubled, NumpyKernel)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_an_op_runs_its_numpy_kernel(dtype):
    x = torch.tensor([[1.0, -2.0], [3.0, 0.5]], dtype=dtype)

    assert [[2.0, -2.0], [6.0, 7.0]] == cumulative(x, 2.0).tolist()


def test_an_op_with_a_numpy_kernel_is_compiled_as_one_node():
    x = torch.tensor([1.0, 2.0])

    assert [2.0, 6.0] == torch.compile(cumulative, backend="aot_eager", fullgraph=True)(x, 2.0).tolist()


NO_BFLOAT16 = """\
doubled: 'x' cannot become a NumPy array
  expected   a strided CPU tensor of a dtype that NumPy has: not bfloat16 and no float8
  found      a Tensor of torch.bfloat16 on cpu: Got unsupported ScalarType BFloat16
  do         let another kernel serve such tensors, or write this one in PyTorch operations"""

READ_ONLY = """\
numpy_sources::declared: the NumPy kernel writes to a read-only array, such as that of 'x' or 'weight' or 'bias'
  expected   writes to arguments that the op declares as mutated, and to arrays that the kernel makes
  found      assignment destination is read-only
  rule       test_numpy.py:LINE
  do         write to a copy, or declare the argument: mutates_args=('x',)"""
