"""Kernels that are registered for the second device run there, and native calls and C++ kernels by address serve it."""

# ruff: noqa: E501 - a message is as long as it is

import sys
from contextlib import contextmanager

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from torch import Tensor
from torch.testing import assert_close

from cpp_sources import built_source
from custom_autograd import KernelError, custom_op
from custom_autograd.kernels import cpp_kernel
from custom_autograd.kernels.cpp import addresses_of
from custom_autograd.native.loading import library

DEVICE = torch.device("second", 0)

needs_native = pytest.mark.skipif(library.module is None, reason=library.reason)

SOURCE = """
#include <custom_autograd/kernel.h>
using namespace custom_autograd;

template <int count>
Tensor times(const Tensor& x, const Tensor& weight) {
  check_contiguous(x, "x", x);
  check_contiguous(weight, "weight", x);
  check_type(weight, ScalarType::Double, "weight", x);
  Tensor out = allocate_like(x);
  const double *in = read<double>(x), *by = read<double>(weight);
  double* result = write<double>(out);
  for_rows(row_count(x), x.size(-1), [=, columns = x.size(-1)](int64_t first, int64_t last) {
    for (int64_t i = first * columns; i < last * columns; ++i) result[i] = count * in[i] * by[i % columns];
  });
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) { m.def("times(Tensor x, Tensor weight) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("times", TORCH_BOX(&times<2>)); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, PrivateUse1, m) { m.impl("times", TORCH_BOX(&times<3>)); }
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return built_source(tmp_path_factory.mktemp("second") / "times.cpp", SOURCE, "times")


def x(*shape, device=DEVICE, grad=False):
    values = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return values.to(device).requires_grad_(grad)


@contextmanager
def python_calls(*objects):
    """Count the calls that native code leaves to the `__call__` of each object's class."""
    # It is not replaced meanwhile: from Python 3.12 on, that ends native calls of the whole class.
    codes, ran = [type(one).__call__.__code__ for one in objects], []
    sys.setprofile(lambda frame, event, _: ran.append(frame.f_code) if event == "call" else None)
    try:
        yield lambda: [ran.count(code) for code in codes]
    finally:
        sys.setprofile(None)


@needs_native
def test_a_cpp_kernel_is_called_by_its_address_on_each_device_that_its_source_serves(source):
    kernel = cpp_kernel(source, "times")
    kernel(x(2, 3), x(3))
    addresses = dict(addresses_of(kernel.build()[1], kernel.build()[0], "times"))
    with python_calls(kernel) as count:
        found = [kernel(x(2, 3, device=device), x(3, device=device)) for device in (DEVICE, "cpu")]

    assert ["CPU", "PrivateUse1"] == sorted(addresses)
    assert addresses == {key: kernel._native.address(key) for key in addresses}
    assert addresses["CPU"] != addresses["PrivateUse1"]
    assert [0] == count()
    assert [DEVICE, torch.device("cpu")] == [one.device for one in found]
    product = x(2, 3, device="cpu") * x(3, device="cpu")
    assert_close([one.cpu() for one in found], [3 * product, 2 * product])


def test_a_helper_of_the_header_names_the_device_that_it_expects(source):
    kernel = cpp_kernel(source, "times", host=["weight"])  # or the call is refused before it gets there

    with pytest.raises(RuntimeError, match="'weight' must be a contiguous tensor on the device of the others"):
        kernel(x(2, 3), x(3, 2).t()[0])
    with pytest.raises(RuntimeError, match="'weight' must be a contiguous tensor on the device of the others"):
        kernel(x(2, 3), x(3, device="cpu"))
    with pytest.raises(
        RuntimeError, match="'weight' must be a tensor of dtype Double on the device of the others, found Float"
    ):
        kernel(x(2, 3), x(3).float())


def test_a_source_without_a_kernel_for_the_device(tmp_path):
    text = "\n".join(line for line in SOURCE.splitlines() if "PrivateUse1" not in line)
    path = built_source(tmp_path / "for_cpu.cpp", text, "times")
    kernel = cpp_kernel(path, "times")
    op = custom_op("second_kernels::for_cpu", kernel, schema="(Tensor x, Tensor weight) -> Tensor")
    texts = []
    for call in (kernel, op, torch.ops.second_kernels.for_cpu):
        for _ in range(3):  # native calls of CPU tensors are known
            call(x(2, 3, device="cpu"), x(3, device="cpu"))
        texts.append(message(lambda call=call: call(x(2, 3), x(3)), KernelError).replace(str(tmp_path), "FOLDER"))

    assert 1 == len(set(texts))
    assert_expected_inline(
        texts[0],
        """\
KernelError: for_cpu.cpp: 'times' has no kernel for device type 'second'
  expected   tensors whose dispatch key is 'CPU'
  found      'second', whose dispatch key is 'PrivateUse1'
  declared   FOLDER/for_cpu.cpp
  do         add STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, PrivateUse1, m) to the source, or register another kernel of the op for 'second'""",
    )


@needs_native
def test_native_calls_serve_an_op_on_the_device(source):
    """Values, gradients, and which code ran: neither the Python of the op nor that of its kernel."""

    @custom_op("second_kernels::times", device_types="cpu")
    def times(x: Tensor, weight: Tensor) -> Tensor:
        raise AssertionError("the kernel of the device runs")

    kernel = cpp_kernel(source, "times")
    times.register_kernel("second")(kernel)
    times.register_backward(lambda grad, x, weight: (3 * grad * weight, (3 * grad * x).sum(0)))
    for _ in range(3):
        times(x(2, 3, grad=True), x(3)).sum().backward()
        times(x(2, 3), x(3))
    given, weight = x(2, 3, grad=True), x(3, grad=True)
    with python_calls(times, kernel) as count:
        out = times(given, weight)
        out.sum().backward()
        plain = times(x(2, 3), x(3))

    assert [0, 0] == count()
    assert times._native.count_kinds() > 0
    expected = 3 * x(2, 3, device="cpu") * x(3, device="cpu")
    assert_close([out.detach().cpu(), plain.cpu()], [expected, expected])
    assert_close(given.grad.cpu(), (3 * x(3, device="cpu")).expand(2, 3))
    assert_close(weight.grad.cpu(), 3 * x(2, 3, device="cpu").sum(0))


def make_op(name, **options):
    @custom_op(f"second_kernels::{name}", **options)
    def double(x: Tensor) -> Tensor:
        return x * 2

    return double


def test_the_first_name_of_the_device_type_is_that_of_the_device():
    """Else direct calls, which know the device by its name, would run the default kernel."""
    op = make_op("renamed")
    op.register_kernel("privateuseone")(lambda x: x * 3)

    found = [op(x(2)) for _ in range(4)]

    assert ["second", "default"] == list(op.kernels)
    assert_close([3 * x(2)] * 4, found)
    with op.set_kernel_enabled("privateuseone", False):
        assert_close(2 * x(2), op(x(2)))


def test_an_op_that_is_declared_for_the_device_alone():
    op = make_op("declared", device_types="privateuseone")

    assert ["second"] == list(op.kernels)
    assert_close([2 * x(2)] * 3, [op(x(2)) for _ in range(3)])


@pytest.mark.parametrize("device_type", ["second", "privateuseone"])
def test_autocast_has_a_policy_for_the_device(device_type):
    op = make_op(f"cast_for_{device_type}")
    op.register_backward(lambda grad: grad * 2)
    op.register_autocast(device_type, "lower", output="float32")
    given = x(2).float().requires_grad_()
    with torch.autocast("second", dtype=torch.bfloat16):
        found = [op(given) for _ in range(3)]
        found[-1].sum().backward()
        on_cpu = op(x(2, device="cpu").float())

    assert_close([2 * given.detach().bfloat16().float()] * 3, [one.detach() for one in found])
    assert torch.equal(2 * x(2, device="cpu").float(), on_cpu)
    assert_close(torch.full_like(given, 2), given.grad)
    assert_close(2 * x(2), op(x(2)))


def test_results_are_not_looked_at_while_a_graph_of_the_device_is_captured(monkeypatch):
    """Looking waits for the device, which ends the capture."""
    op = make_op("captured")
    op.validation = "full"
    op(x(2))
    given, before = x(2), torch.second.calls("aten::equal")
    op(given)
    looked = torch.second.calls("aten::equal") - before
    monkeypatch.setattr(torch.second, "is_current_stream_capturing", lambda: True, raising=False)
    op(given)

    assert 0 < looked == torch.second.calls("aten::equal") - before
