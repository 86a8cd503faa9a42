"""At the level `full` a write to an input that is not declared raises, whichever way the kernel writes."""

import ctypes

import numpy as np
import pytest
import torch
from tables import each
from torch import Tensor

import custom_autograd
from custom_autograd import KernelError, custom_op
from custom_autograd.execution.watching import PIECE, checksum, is_changed


def through_numpy(x):
    x.numpy()[..., 0] += 1


def through_data(x):
    x.data[..., 0].add_(1)


def through_a_pointer(x):
    ctypes.memset(x.data_ptr(), 7, x.element_size())


WAYS = {"numpy": through_numpy, "data": through_data, "pointer": through_a_pointer}

DTYPES = [
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.complex64,
    torch.complex128, torch.bool, torch.uint8, torch.int16, torch.uint32, torch.int64,
]  # fmt: skip

LAYOUTS = {
    "contiguous": lambda x: x,
    "unaligned": lambda x: x[3:10],
    "every second": lambda x: x[::2],
    "transposed": lambda x: x.reshape(4, 5).t(),
    "inner columns": lambda x: x.reshape(4, 5)[:, 1:4],
    "expanded": lambda x: x[2:3].expand(3, 6),
    "overlapping": lambda x: x.as_strided((5, 3), (1, 2)),
    "no dimension": lambda x: x[7],
    "empty": lambda x: x[:0],
}


def writing(write):
    def kernel(x):
        write(x)
        return torch.zeros(2)

    return custom_op("undeclared::writing", kernel, schema="(Tensor x) -> Tensor", replace=True)


@each("write", WAYS.values(), ids=WAYS)
@each("requires_grad", [False, True], ids=["constant", "recorded"])
def test_a_write_that_pytorch_does_not_count_is_found(write, requires_grad):
    op = writing(write)
    op.register_backward(lambda grad: {"x": None})
    x = torch.ones(3, requires_grad=requires_grad)

    with custom_autograd.validation("full"), pytest.raises(KernelError, match="writes to its input 'x'"):
        op(x)


def test_a_gradient_is_not_silently_wrong():
    """The raw write changes a tensor that autograd has saved: its version does not tell."""
    square = custom_op("undeclared::square", lambda x: x * x, schema="(Tensor x) -> Tensor", replace=True)
    square.register_backward(lambda grad, x: 2 * grad * x)
    z = torch.ones(2, dtype=torch.float64, requires_grad=True) * 3
    with custom_autograd.validation("full"):
        square(z)
        with torch.no_grad(), pytest.raises(KernelError, match="writes to its input 'x'"):
            writing(through_numpy)(z)


def test_every_call_is_looked_at():
    """Not only the first of a kind, and through the dispatcher as well."""
    calls = []

    def kernel(x):
        calls.append(1)
        if len(calls) > 2:
            through_data(x)
        return torch.zeros(2)

    op = custom_op("undeclared::late", kernel, schema="(Tensor x) -> Tensor", replace=True)
    op.validation = "full"
    for _ in range(2):
        op(torch.ones(3))

    for call in (op, torch.ops.undeclared.late):
        with pytest.raises(KernelError, match="writes to its input 'x'"):
            call(torch.ones(3))


def test_a_tensor_of_inference_mode_is_looked_at():
    """It counts no writes at all."""
    op, raises = writing(lambda x: x.add_(1)), pytest.raises(KernelError, match="writes to its input 'x'")
    with torch.inference_mode(), custom_autograd.validation("full"), raises:
        op(torch.ones(3))


def test_an_element_of_a_list_is_looked_at():
    def kernel(xs):
        through_data(xs[1])
        return torch.zeros(2)

    op = custom_op("undeclared::listed", kernel, schema="(Tensor[] xs) -> Tensor", replace=True)

    with custom_autograd.validation("full"), pytest.raises(KernelError, match="writes to its input 'xs'"):
        op([torch.ones(3), torch.ones(3)])


def test_a_declared_write_is_none_of_them():
    """Nor is one to an input that has memory in common with a declared one."""

    def kernel(x, y):
        x.numpy()[...] = 7

    op = custom_op(
        "undeclared::declared", kernel, schema="(Tensor(a!) x, Tensor y) -> ()", mutates_args=("x",), replace=True
    )
    x = torch.zeros(3)
    with custom_autograd.validation("full"):
        op(x, torch.ones(3))
        op(x, x[1:])

    assert [7.0] * 3 == x.tolist()


def test_contents_that_are_not_numbers_are_no_change():
    op = writing(lambda x: None)
    with custom_autograd.validation("full"):
        assert torch.equal(torch.zeros(2), op(torch.full((3,), float("nan"))))


@each("layout", LAYOUTS.values(), ids=LAYOUTS)
@each("dtype", DTYPES)
def test_checksums_change_with_the_elements_of_a_tensor_and_with_nothing_else(layout, dtype):
    """Each byte of the memory that the tensor is a part of, one at a time."""
    base = torch.zeros(20, dtype=dtype)
    x, size = layout(base), base.element_size()
    own = set(layout(torch.arange(20)).reshape(-1).tolist())
    memory = np.frombuffer((ctypes.c_char * (20 * size)).from_address(base.data_ptr()), np.uint8)
    before, noticed = checksum(x), set()
    for place in range(20 * size):
        memory[place] = 1
        if is_changed(before, checksum(x)):
            noticed.add(place)
        memory[place] = 0

    assert {element * size + byte for element in own for byte in range(size)} == noticed


@pytest.mark.parametrize("lazy", [torch.conj, lambda x: torch.conj(x).imag], ids=["conjugated", "negated"])
def test_lazy_bits_do_not_hide_the_memory(lazy):
    x = torch.ones(4, dtype=torch.complex64)
    before = checksum(lazy(x))
    x.data.mul_(2j)

    assert is_changed(before, checksum(lazy(x)))


@pytest.mark.parametrize(
    "permuted", [lambda x: x.flip(0), lambda x: x.roll(PIECE), lambda x: x.sort()[0]], ids=["flip", "roll", "sort"]
)
def test_an_order_is_part_of_the_contents(permuted):
    """Of numbers with few bits, too, and over more than a piece of the memory."""
    x = torch.arange(2 * PIECE, dtype=torch.float64) % 3 + (torch.arange(2 * PIECE) >= PIECE)
    before = checksum(x)
    x.data.copy_(permuted(x))

    assert is_changed(before, checksum(x))


@pytest.mark.parametrize("layout", ["sparse", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"])
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_sparse_tensors_are_looked_at(layout):
    sizes = {"blocksize": (2, 2)} if layout.startswith("sparse_bs") else {}
    x = getattr(torch.ones(4, 4), f"to_{layout}")(**sizes)
    before = checksum(x)
    (x._values() if layout == "sparse" else x.values()).data.mul_(2)

    assert is_changed(before, checksum(x))


class Held(Tensor):
    """A tensor whose functions are not to be called."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(func)


def test_subclasses_are_looked_at_without_their_functions():
    memory = torch.ones(4)
    x = memory.as_subclass(Held)
    before = checksum(x)
    memory.mul_(2)

    assert is_changed(before, checksum(x))


def test_what_a_wrapper_holds_is_looked_at():
    memory = torch.ones(5)
    x = torch.nested.nested_tensor_from_jagged(memory, torch.tensor([0, 2, 5]))
    before = checksum(x)
    memory.data.mul_(2)

    assert is_changed(before, checksum(x))


def test_tensors_without_memory_have_no_checksum():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(3)

    assert [[], [], []] == [checksum(torch.ones(3, device="meta")), checksum(fake), checksum(torch.ones(3).to_mkldnn())]


@each("requires_grad", [False, True], ids=["constant", "recorded"])
@pytest.mark.parametrize("layout", ["sparse", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"])
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_a_kernel_may_make_a_sparse_input_dense(layout, requires_grad):
    """In a kernel PyTorch counts this as three writes to a compressed tensor."""
    sizes = {"blocksize": (1, 1)} if layout.startswith("sparse_bs") else {}
    op = custom_op(
        "undeclared::reading", lambda a, x: a.to_dense() @ x, schema="(Tensor a, Tensor x) -> Tensor", replace=True
    )
    op.register_backward(lambda grad, a: {"a": None, "x": a.to_dense().T @ grad})
    a = getattr(torch.eye(3), f"to_{layout}")(**sizes)
    x = torch.ones(3, 2, requires_grad=requires_grad)

    assert torch.equal(torch.ones(3, 2), op.overload(a, x))
    assert torch.equal(torch.ones(3, 2), op(a, x))


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_a_write_to_a_compressed_input_is_found():
    def kernel(a: Tensor) -> Tensor:
        a.values().mul_(2)
        return torch.zeros(2)

    op = custom_op("undeclared::rescaling", kernel)

    with pytest.raises(KernelError, match="writes to its input 'a'"):
        op(torch.eye(3).to_sparse_csr())
