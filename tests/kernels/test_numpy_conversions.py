"""Conversions of NumPy kernels: common tensors and arrays are converted quickly, with the same results as others."""

import functools
import re
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tables import each
from torch import Tensor
from torch.nn import Parameter

from custom_autograd import KernelError, custom_op
from custom_autograd.kernels import numpy_kernel

KEPT: dict[str, np.ndarray] = {}


class Wrapped(Tensor):
    """A subclass of Tensor: it is not converted quickly."""


class Pair(NamedTuple):
    first: np.ndarray
    second: np.ndarray


class Named(np.ndarray):
    """A subclass of numpy.ndarray."""


def values():
    return torch.arange(6.0).reshape(2, 3)


INPUTS = {
    "plain": values,
    "gradient": lambda: values().requires_grad_(),
    "not a leaf": lambda: values().requires_grad_() * 2,
    "Parameter": lambda: Parameter(values()),
    "frozen Parameter": lambda: Parameter(values(), requires_grad=False),
    "subclass": lambda: values().as_subclass(Wrapped),
    "transposed": lambda: values().t(),
    "strided": lambda: values()[:, ::2],
    "offset": lambda: values()[1:],
    "expanded": lambda: values()[:, :1].expand(2, 4),
    "without dimensions": lambda: torch.tensor(3.0),
    "empty": lambda: torch.ones(0, 3),
    "inference": torch.inference_mode()(values),
}
LAZY = {
    "conjugated": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "negated": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "conjugated with gradient": lambda: torch.tensor([1 + 2j], requires_grad=True).conj(),
}


@numpy_kernel
def doubled(x):
    return x + x


@each("make", [*INPUTS.values(), *LAZY.values()], ids=[*INPUTS, *LAZY])
def test_every_kind_of_tensor_has_the_values_of_a_copy(make):
    x = make()
    copied = x.detach().resolve_conj().resolve_neg().clone().as_subclass(Tensor)

    for found in (doubled(x), doubled.of_op("a::b", ("x",), ())(x)):
        assert type(found) is Tensor
        assert not found.requires_grad
        assert torch.equal(copied + copied, found)


@each("make", INPUTS.values(), ids=INPUTS)
def test_an_array_has_the_memory_of_its_tensor_and_is_read_only_unless_declared(make):
    seen = []

    @numpy_kernel
    def look(x, out):
        seen.append((x.ctypes.data, x.shape, x.strides, x.flags.writeable, out.flags.writeable))

    x, out = make(), torch.ones(2)
    look(x, out)
    look.of_op("a::b", ("x", "out"), ())(x, out)
    look.of_op("a::b", ("x", "out"), ("out",))(x, out=out)
    layout = x.data_ptr(), tuple(x.shape), tuple(4 * stride for stride in x.stride())

    has_memory = x.numel() > 0  # an empty array may be at any address
    assert [(True, True), (False, False), (False, True)] == [found[3:] for found in seen]
    assert all(layout[1:] == found[1:3] for found in seen if has_memory)
    assert all(layout[0] == found[0] for found in seen if has_memory)


@pytest.mark.parametrize("make", LAZY.values(), ids=LAZY)
def test_the_array_of_a_lazy_tensor_is_a_read_only_copy_even_if_declared(make):
    @numpy_kernel
    def fill(x):
        x[:] = 7

    x = make()
    before = x.tolist()
    for kernel in (fill, fill.of_op("a::b", ("x",), ("x",))):
        with pytest.raises(ValueError, match=r"^assignment destination is read-only$"):
            kernel(x)

    assert before == x.tolist()


def kept(array, name="kept"):
    return KEPT.setdefault(name, array)


def with_kept_view(array):
    KEPT["view"] = array[1:]
    return array


def fixed(array):
    array.flags.writeable = False
    return array


FRESH = {
    "array": lambda x: x + 1,
    "Fortran": lambda x: np.asfortranarray(np.outer(x, x)),
    "without dimensions": lambda x: np.asarray(x.sum() + 0),
    "tuple": lambda x: (x + 1, x + 2),
    "list": lambda x: [x + 1, x + 2],
    "NamedTuple": lambda x: Pair(x + 1, x + 2),
    "dict": lambda x: {"a": x + 1, "b": [x + 2]},
}
COPIED = {
    "argument": lambda x: x,
    "argument in a tuple": lambda x: (x,),
    "view": lambda x: x[1:],
    "view of what is made": lambda x: (x + 1)[1:],
    "reversed": lambda x: (x + 1)[::-1],
    "kept": lambda x: kept(x + 1),
    "kept in a tuple": lambda x: (kept(x + 1),),
    "kept in a NamedTuple": lambda x: Pair(kept(x + 1), kept(x + 2, "second")),
    "kept as a view": lambda x: with_kept_view(x + 1),
    "read-only": lambda x: fixed(x + 1),
    "broadcast": lambda x: np.broadcast_to(x[:1], 4),
    "twice": lambda x: (lambda y: (y, y))(x + 1),
    "argument twice": lambda x: [x, x],
    "with a part of it": lambda x: (lambda y: (y, y[1:]))(x + 1),
    "kept in a list": lambda x: [kept(x + 1)],
    "kept in a dict": lambda x: {"a": kept(x + 1)},
}


def addressed(kernel):
    """Return a kernel that records the addresses of its results' memory, and where."""
    places = []

    @functools.wraps(kernel)
    def recorded(x):
        found = kernel(x)
        places.append([part.ctypes.data for part in parts(found)])
        return found

    return numpy_kernel(recorded), places


def parts(result):
    if isinstance(result, dict):
        result = list(result.values())
    return [one for item in result for one in parts(item)] if isinstance(result, (list, tuple)) else [result]


@each("kernel", FRESH.values(), ids=FRESH)
@each("is_of_op", [False, True], ids=["kernel", "op"])
def test_what_a_kernel_makes_is_not_copied(kernel, is_of_op):
    kernel, places = addressed(kernel)
    kernel = kernel.of_op("a::b", ("x",), ()) if is_of_op else kernel

    for _ in range(3):
        assert [out.data_ptr() for out in parts(kernel(torch.ones(5)))] == places.pop()


@each("kernel", COPIED.values(), ids=COPIED)
@each("is_of_op", [False, True], ids=["kernel", "op"])
def test_what_something_else_refers_to_is_copied(kernel, is_of_op):
    kernel, places = addressed(kernel)
    kernel = kernel.of_op("a::b", ("x",), ()) if is_of_op else kernel

    for _ in range(3):
        KEPT.clear()
        x = torch.ones(5)
        found = parts(kernel(x))
        assert {out.data_ptr() for out in found}.isdisjoint(places.pop())
        assert len(found) == len({out.data_ptr() for out in found})
        others = [out.tolist() for out in found[1:]]
        found[0].fill_(99)
        assert [1.0] * 5 == x.tolist()
        assert others == [out.tolist() for out in found[1:]]
        assert all(99 not in array for array in KEPT.values())


def test_numpy_scalars_become_tensors_also_among_arrays():
    found = numpy_kernel(lambda x: (x.sum(), x + 1, np.int64(3), 2.0))(torch.ones(2))

    assert torch.equal(torch.tensor(2.0), found[0])
    assert [2.0, 2.0] == found[1].tolist()
    assert torch.equal(torch.tensor(3), found[2])
    assert 2.0 == found[3]


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (lambda x: x.view(Named), "Named of float32"),
        (lambda x: (x + 1).view(Named), "Named of float32"),
        (lambda x: (x + 1, x.astype(">f8")), "numpy.ndarray of >f8: .*byte order"),
        (lambda x: {"a": x.astype(object)}, "numpy.ndarray of object: .*object_"),
        (lambda x: np.array(["a"]), "numpy.ndarray of <U1"),
        (lambda x: np.ma.masked_array(x, x > 1), "numpy.ma.MaskedArray of float32"),
    ],
    ids=["subclass", "fresh subclass", "byte order", "object", "text", "masked"],
)
def test_an_array_without_a_tensor_raises_from_kernel_and_op(result, found):
    kernel = numpy_kernel(result)
    for call in (kernel, kernel.of_op("a::b", ("x",), ())):
        with pytest.raises(KernelError, match=f"^<lambda>: what the kernel returns cannot .*\n.*\n.*{found}"):
            call(torch.ones(2))


@numpy_kernel
def many(x, *ys, named=None):
    return x


BAD = torch.ones(2, dtype=torch.bfloat16)


@each(
    ("args", "kwargs", "label"),
    [
        ((BAD,), {}, "x"),
        ((BAD, BAD), {}, "x"),
        ((BAD.clone().requires_grad_(),), {}, "x"),
        ((Parameter(BAD),), {}, "x"),
        ((torch.ones(2), 3, BAD), {}, "ys[1]"),
        ((torch.ones(2), [torch.ones(1), {"a": (1, BAD)}]), {}, "ys[0][1]['a'][1]"),
        ((torch.ones(2),), {"named": Pair(torch.ones(1), BAD)}, "named[1]"),
        ((torch.ones(2), BAD.clone()), {"named": BAD}, "ys[0]"),
        ((torch.ones(2).to(torch.float8_e4m3fn),), {}, "x"),
        ((torch.ones(2, device="meta"),), {}, "x"),
        ((torch.ones(2, 2).to_sparse(),), {}, "x"),
    ],
    ids=["first", "twice", "gradient", "Parameter", "further", "nested", "keyword", "two", "float8", "meta", "sparse"],
)
def test_the_message_names_the_first_argument_that_cannot_be_converted(args, kwargs, label):
    with pytest.raises(KernelError, match=f"^many: '{re.escape(label)}' cannot become a NumPy array\n"):
        many(*args, **kwargs)


def test_a_function_without_a_signature_runs_and_its_arguments_are_numbered():
    kernel = numpy_kernel(max)

    assert torch.equal(torch.tensor(3.0), kernel(torch.tensor([1.0, 3.0, 2.0])))
    with pytest.raises(KernelError, match=r"^max: 'argument 0' cannot become a NumPy array"):
        kernel(BAD)


def test_every_array_of_extra_arguments_is_read_only():
    def shape(*xs: Tensor) -> Tensor: ...

    @functools.wraps(shape)
    def kernel(*xs):
        xs[0].fill(7)
        return xs[1] + 1

    op, first = custom_op("numpy_conversions::extra", numpy_kernel(kernel), replace=True), torch.ones(2)
    with pytest.raises(KernelError, match="such as that of 'xs'"):
        op(first, torch.ones(2))

    assert [1.0, 1.0] == first.tolist()


@pytest.mark.parametrize("pick", [lambda xs: xs[1], lambda xs: xs.pop()], ids=["that is kept", "that is emptied"])
def test_the_message_of_a_write_names_a_list(pick):
    def kernel(xs, sizes):
        pick(xs).fill(7)

    op = numpy_kernel(kernel).of_op("numpy_conversions::emptied", ("xs", "sizes"), ())

    with pytest.raises(KernelError, match=r"^numpy_conversions::emptied: .* such as that of 'xs'\n"):
        op([torch.ones(1), torch.ones(1)], [2, 3])
