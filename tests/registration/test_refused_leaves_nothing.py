"""What is refused leaves nothing behind: the same can be declared or registered properly afterwards."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from custom_autograd import CustomAutogradError, custom_op
from custom_autograd.kernels import cpp_kernel
from custom_autograd.registration.registry import all_records

NUMBERS = itertools.count()
GRADIENTS = """
#include <torch/library.h>
TORCH_LIBRARY_FRAGMENT(gradients, m) {
  m.def("both(Tensor grad, Tensor x, Tensor y) -> (Tensor, Tensor)");
}
"""


def product(x: Tensor, y: Tensor) -> Tensor:
    return x * y


def in_place(x: Tensor, y: Tensor) -> None:
    x.mul_(y)


def one_tuple(x: Tensor, y: Tensor) -> tuple[Tensor]:
    return (x * y,)


DECLARATIONS = {
    "unknown device type": (product, {"device_types": "nothing"}),
    "one of two device types": (product, {"device_types": ("cpu", "nothing")}),
    "device type of a tuple of one": (one_tuple, {"device_types": "nothing"}),
    "line of shapes": (product, {"shapes": "x: n, z: n -> output: n"}),
    "numbers of a line": (product, {"shapes": "x: n, y: n -> output: n", "numbers": {"z": 1}}),
    "inline": (product, {"inline": "kernel"}),
    "checkpoint": (in_place, {"mutates_args": "x", "checkpoint": "save"}),
    "schema": (product, {"schema": "(Tensor x, Tensor y, Tensor z) -> Tensor"}),
    "type of the schema": (product, {"schema": "(Tensor x, Nothing y) -> Tensor"}),
    "order of the schema": (product, {"schema": "(Tensor y, Tensor x) -> Tensor"}),
    "mutates_args": (product, {"mutates_args": "z"}),
    "outputs": (product, {"outputs": ("x",)}),
    "replace": (product, {"replace": True, "device_types": "nothing"}),
    "tags": (product, {"tags": "pointwise"}),
}


@given(st.lists(st.sampled_from(sorted(DECLARATIONS)), min_size=1, max_size=4), st.booleans())
@settings(max_examples=20, deadline=None)
def test_after_refused_declarations_the_name_is_as_it_was(labels, is_declared):
    name = f"refused::declared_{next(NUMBERS)}"
    earlier = custom_op(name, lambda x, y: x - y, schema="(Tensor x, Tensor y) -> Tensor") if is_declared else None
    before = all_records()
    for label in labels:
        function, options = DECLARATIONS[label]
        with pytest.raises(CustomAutogradError):
            custom_op(name, function, **options)

    assert before == all_records()
    assert is_declared == hasattr(torch.ops.refused, name.partition("::")[2])
    x, y = torch.tensor([2.0, 3.0]), torch.tensor([5.0, 7.0])
    if earlier is not None:
        by_name = getattr(torch.ops.refused, name.partition("::")[2])
        assert [-3.0, -4.0] == earlier(x, y).tolist() == by_name(x, y).tolist()
    op = custom_op(name, product, reference=True, replace=is_declared)
    assert [10.0, 21.0] == op(x, y).tolist()
    assert [5.0, 7.0] == torch.func.grad(lambda x: op(x, y).sum())(x).tolist()


REGISTRATIONS = {
    "one of two device types": lambda op, _: op.register_kernel(("cpu", "nothing"), product),
    "a device of a type": lambda op, _: op.register_kernel(("cpu", "cuda:0"), product),
    "a name that one of two has": lambda op, _: op.register_kernel(("cuda", "cpu"), lambda x, y: x, name="taken"),
    "by name": lambda op, _: torch.library.register_kernel(op.name, ("cpu", "nothing"), product),
    "an in-place kernel": lambda op, _: op.inplace.register_kernel(("cpu", "nothing"), lambda x, y: x),
    "an out kernel": lambda op, _: op.out.register_kernel("cpu", lambda x: x),
    "a second backward, in C++": lambda op, path: op.register_backward(cpp_kernel(path, "both")),
    "a saving policy, in C++": lambda op, path: op.register_backward(
        cpp_kernel(path, "both"), saving={"z": None}, replace=True
    ),
}


@pytest.mark.parametrize("register", REGISTRATIONS.values(), ids=REGISTRATIONS)
def test_a_refused_registration_leaves_the_op_as_it_was(register, tmp_path):
    path = tmp_path / "gradients.cpp"
    path.write_text(GRADIENTS, encoding="utf-8")
    op = custom_op(f"refused::registered_{next(NUMBERS)}", product, reference=True)
    op.register_backward(lambda grad, x, y: {"x": grad * y, "y": grad * x})
    op.register_kernel("cpu", lambda x, y: x * y, name="taken")
    before = all_records(), op.kernels, op.capabilities()
    with pytest.raises(CustomAutogradError):
        register(op, str(path))

    assert before == (all_records(), op.kernels, op.capabilities())
    x, y = torch.tensor([2.0, 3.0]), torch.tensor([5.0, 7.0])
    assert [5.0, 7.0] == torch.func.grad(lambda x: op(x, y).sum())(x).tolist()
    op.register_kernel("cpu", lambda x, y: x * y + 1)
    assert [[10.0, 21.0], [11.0, 22.0]] == [one_of(op, "taken")(x, y).tolist(), one_of(op, "cpu")(x, y).tolist()]
    op.inplace.register_kernel("cpu", lambda x, y: x.mul_(y))
    assert [10.0, 21.0] == op.inplace(x, y).tolist()
    assert [50.0, 147.0] == op.out(x, y, out=x).tolist()


def one_of(op, kernel):
    """Return a function that calls the op with the kernel of that name."""

    def call(*args):
        with op.use_kernel(kernel):
            return op(*args)

    return call
