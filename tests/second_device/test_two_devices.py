"""Tensors on two devices: an error that names the op, its arguments and their devices, or a kernel that takes them."""

import copy
import pickle

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from torch import Tensor
from torch.testing import assert_close

from cpp_sources import built_source
from custom_autograd import KernelError, custom_op, through_dispatcher
from custom_autograd.kernels import cpp_kernel

pytestmark = pytest.mark.slow

DEVICE = torch.device("second", 0)
CPU = torch.device("cpu")


@custom_op("two::scaled")
def scaled(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


scaled.register_backward(lambda grad, x, weight: (grad * weight, grad * x))


@custom_op("two::derived", reference=True)
def derived(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


def x(*shape, device=DEVICE, grad=False):
    values = torch.arange(1.0, 1 + torch.Size(shape).numel(), dtype=torch.float64).sin().view(shape).to(device)
    return values.requires_grad_() if grad else values


def test_an_op_whose_kernel_is_python():
    assert_expected_inline(
        message(lambda: scaled(x(2), x(2, device=CPU))),
        """\
KernelError: two::scaled: tensors on two devices: 'x' is on second:0, 'weight' is on cpu
  expected   all tensors on one device, but for zero-dimensional ones on the CPU
  found      Expected all tensors to be on the same device, but found at least two devices, second:0 and cpu!
  declared   FILE.py:LINE
  do         move 'weight' to second:0 before the call""",
    )


REFUSED = r"^two::\w+: tensors on two devices: 'x' is on second:0, 'weight' is on cpu\n"
ROADS = {
    "eager": lambda op: op(x(2), x(2, device=CPU)),
    "recorded": lambda op: op(x(2, grad=True), x(2, device=CPU)),
    "recorded for the CPU tensor": lambda op: op(x(2), x(2, device=CPU, grad=True)),
    "inference": lambda op: torch.inference_mode()(op)(x(2), x(2, device=CPU)),
    "torch.func.grad": lambda op: torch.func.grad(lambda t: op(t, x(2, device=CPU)).sum())(x(2)),
    "torch.func.vmap": lambda op: torch.func.vmap(lambda t: op(t, x(2, device=CPU)))(x(3, 2)),
    "torch.func.jvp": lambda op: torch.func.jvp(lambda t: op(t, x(2, device=CPU)), (x(2),), (x(2),)),
    "in place": lambda op: op.inplace(x(2), x(2, device=CPU)),
}


@pytest.mark.parametrize("op", [scaled, derived], ids=["rule", "reference"])
@pytest.mark.parametrize("call", ROADS.values(), ids=ROADS)
def test_every_road_names_the_arguments(call, op):
    op(x(2), x(2))  # a native call of these dtypes is known
    with pytest.raises(
        KernelError, match=r"^two::\w+: tensors on two devices: 'x' is on second:0, 'weight' is on cpu\n"
    ):
        call(op)


def test_a_call_by_name_and_one_through_the_dispatcher():
    for call in (torch.ops.two.scaled, scaled):
        with through_dispatcher(), pytest.raises(KernelError, match="'x' is on cpu, 'weight' is on second:0"):
            call(x(2, device=CPU), x(2))


def test_numbers_on_the_cpu_go_with_tensors_of_any_device():
    for call in (scaled, torch.ops.two.scaled):
        assert_close(call(x(2), torch.tensor(3.0)).cpu(), 3 * x(2, device=CPU))
        assert_close(call(torch.tensor(3.0), x(2)).cpu(), 3 * x(2, device=CPU))


def test_a_number_on_the_device_does_not_go_with_tensors_on_the_cpu():
    for call in (scaled, derived, torch.ops.two.scaled):
        with pytest.raises(KernelError, match="'x' is on cpu, 'weight' is on second:0"):
            call(x(2, device=CPU), torch.tensor(3.0, device=DEVICE))


def test_an_op_without_a_kernel_for_the_device():
    op = custom_op("two::host", lambda xs, y: y, schema="(Tensor[] xs, Tensor y) -> Tensor", device_types="cpu")
    alone = message(lambda: op([x(2)], torch.tensor(1.0)))

    assert_expected_inline(
        message(lambda: op([x(2, device=CPU)] * 7, x(2))),
        """\
KernelError: two::host: tensors on two devices: 'xs' is on cpu, 'y' is on second:0
  expected   all tensors on one device, but for zero-dimensional ones on the CPU
  declared   FILE.py:LINE
  do         move 'xs' to second:0 before the call""",
    )
    assert "there is no kernel for device type 'second'" in alone


@custom_op("two::shifted")
def shifted(x: Tensor, offsets: Tensor) -> Tensor:
    return x + int(offsets.sum())


shifted.register_backward(lambda grad, x, offsets: (grad * (1 + 0 * offsets.sum().item()), None))


def test_a_kernel_and_a_rule_that_take_tensors_of_two_devices():
    offsets, given = torch.tensor([1, 2]), x(2, grad=True)
    for _ in range(3):
        out = shifted(given, offsets)
        out.sum().backward()

    assert_close(out.detach().cpu(), x(2, device=CPU) + 3)
    assert_close(given.grad.cpu(), torch.full((2,), 3.0, dtype=torch.float64))


def failing_rule(grad, x, offsets):
    return grad * offsets, None


@pytest.mark.parametrize(
    "gradient",
    [
        lambda op: op(x(2, grad=True), x(2, device=CPU)).sum().backward(),
        lambda op: torch.func.grad(lambda t: op(t, x(2, device=CPU)).sum())(x(2)),
    ],
    ids=["backward", "torch.func.grad"],
)
def test_a_rule_that_mixes_devices_is_noted_with_its_arguments(gradient):
    op = custom_op(
        "two::wrong", lambda x, offsets: x.clone(), schema="(Tensor x, Tensor offsets) -> Tensor", replace=True
    )
    op.register_backward(failing_rule)
    with pytest.raises(RuntimeError, match="same device") as caught:
        gradient(op)

    notes = caught.value.__notes__ if hasattr(caught.value, "__notes__") else [str(caught.value.__cause__)]
    assert any(note.startswith("raised in the backward rule of two::wrong, test_two_devices.py:") for note in notes)
    shown = "tensors on two devices: 'grad' is on second:0, 'x' is on second:0, 'offsets' is on cpu"
    assert shown in notes or not hasattr(caught.value, "__notes__")


SOURCE = """
#include <custom_autograd/kernel.h>
using namespace custom_autograd;

// Reads whatever memory it is given, as a kernel on a GPU would.
Tensor added(const Tensor& x, const Tensor& offsets) {
  Tensor out = allocate_like(x);
  double sum = 0;
  for (int64_t i = 0; i < offsets.numel(); ++i) sum += read<double>(offsets)[i];
  for (int64_t i = 0; i < x.numel(); ++i) write<double>(out)[i] = read<double>(x)[i] + sum;
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) { m.def("added(Tensor x, Tensor offsets) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("added", TORCH_BOX(&added)); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, PrivateUse1, m) { m.impl("added", TORCH_BOX(&added)); }
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return built_source(tmp_path_factory.mktemp("two") / "added.cpp", SOURCE, "added")


def test_a_function_of_a_source_for_a_device_is_not_called_with_foreign_memory(source):
    kernel = cpp_kernel(source, "added")
    kernel(x(2), x(2))

    assert_expected_inline(
        message(lambda: kernel(x(2), offsets=x(2, device=CPU))).replace(str(source.parent), "FOLDER"),
        """\
KernelError: added.cpp: tensors on two devices: 'x' is on second:0, 'offsets' is on cpu
  expected   all tensors on one device; arguments of the function that are on the CPU are named with host=
  declared   FOLDER/added.cpp
  do         move 'offsets' to second:0 before the call""",
    )
    with pytest.raises(KernelError, match="'x' is on cpu, 'offsets' is on second:0"):
        kernel(x(2, device=CPU), x(2))
    with pytest.raises(KernelError, match="'offsets' is on cpu"):  # its memory, too, is not that of the device
        kernel(x(2), torch.tensor(3.0, dtype=torch.float64))


def test_an_op_with_a_cpp_kernel_names_its_own_arguments(source):
    op = custom_op("two::added", lambda y, by: y, schema="(Tensor y, Tensor by) -> Tensor")
    op.register_kernel("second")(cpp_kernel(source, "added"))
    op(x(2), x(2))

    assert_expected_inline(
        message(lambda: op(x(2), x(2, device=CPU))),
        """\
KernelError: two::added: tensors on two devices: 'y' is on second:0, 'by' is on cpu
  expected   all tensors on one device, but for zero-dimensional ones on the CPU
  found      added.cpp: tensors on two devices: 'x' is on second:0, 'offsets' is on cpu
  declared   FILE.py:LINE
  do         move 'by' to second:0 before the call""",
    )


@pytest.mark.parametrize(
    "again", [lambda kernel: kernel, copy.deepcopy, lambda kernel: pickle.loads(pickle.dumps(kernel))]
)
def test_arguments_on_the_host_are_declared(source, again):
    kernel = again(cpp_kernel(source, "added", host=["offsets"]))
    expected = x(2, device=CPU) + x(3, device=CPU).sum()
    for offsets in (x(3, device=CPU), x(3)):
        for _ in range(2):
            assert_close(kernel(x(2), offsets).cpu(), expected)
    with pytest.raises(KernelError, match="'x' is on cpu, 'offsets' is on second:0"):
        kernel(x(2, device=CPU), x(3))


def test_a_host_argument_that_is_not_there(source):
    text = message(lambda: cpp_kernel(source, "added", host=["offset"])(x(2), x(2)))

    assert_expected_inline(
        text.replace(str(source.parent), "FOLDER"),
        """\
KernelError: added.cpp: host= names 'offset', which is not an argument of the function
  expected   'x', 'offsets'
  declared   FOLDER/added.cpp
  do         did you mean 'offsets'?""",
    )
    with pytest.raises(KernelError, match="'host' is not a list of words"):
        cpp_kernel(source, "added", host="offsets")
