"""A kernel runs with the device of its tensors as the current one, whatever calls it; one device needs no switch."""

import contextlib

import pytest
import torch
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.execution.current_device import on_device_of
from custom_autograd.kernels import KernelUnavailable, KernelWarning


class Elsewhere(Tensor):
    """A tensor that is on a device which this machine does not have."""

    place: torch.device

    @property
    def device(self):
        return self.place


def on(*devices):
    found = []
    for device in devices:
        found.append(torch.ones(2).as_subclass(Elsewhere))
        found[-1].place = torch.device(device)
    return found


class Machine:
    """A machine with accelerators, the first of which is current: which devices were made the current one."""

    def __init__(self, monkeypatch):
        self.entered, self.current, self.count = [], 0, 3
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
        monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: self.current)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: self.count)
        monkeypatch.setattr(torch.accelerator, "device_index", self.device_index)

    @contextlib.contextmanager
    def device_index(self, index):
        self.entered.append(index)
        before, self.current = self.current, index
        yield
        self.current = before


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (on("xpu:1"), [1]),
        (on("xpu:0"), []),
        (on("cpu"), []),
        (on("cpu", "xpu:2"), [2]),
        ([None, on("xpu:1", "xpu:1")], [1]),
        ([torch.device("xpu", 2)], [2]),
        ([torch.device("xpu")], []),
        ([None], []),
    ],
    ids=["second", "current", "host", "number on the host", "list", "device", "device without index", "nothing"],
)
def test_the_device_of_the_first_tensor_on_an_accelerator_is_made_current(machine, values, expected):
    with on_device_of(values):
        pass

    assert expected == machine.entered


def make_op(machine, name):
    """An op whose kernels return the current device, the default one with 100 added."""
    op = custom_op(f"current::{name}", lambda x: machine.current + 100, schema="(Tensor x) -> Tensor", replace=True)
    op.register_kernel("xpu", lambda x: machine.current)
    return op._record.kernels


@pytest.mark.parametrize(("device_type", "expected"), [("xpu", 2), (None, 102)])
def test_a_kernel_of_an_accelerator_and_the_default_one_switch(machine, device_type, expected):
    kernels = make_op(machine, "switching")

    assert expected == kernels.choose(device_type)(*on("xpu:2"))
    assert 0 == machine.current


def test_the_decorated_function_switches_where_no_other_kernel_serves(machine):
    """It may launch a kernel as well as one that is registered."""
    op = custom_op("current::decorated", lambda x: machine.current, schema="(Tensor x) -> Tensor", replace=True)

    assert 1 == op._record.kernels.choose("xpu")(*on("xpu:1"))


def test_the_kernel_in_place_of_one_that_is_not_available_switches(machine):
    kernels = make_op(machine, "instead")

    with pytest.warns(KernelWarning, match="the xpu kernel of current::instead is passed over"):
        instead = kernels.instead(kernels["xpu"].function, KernelUnavailable("not here"))

    assert 102 == instead(*on("xpu:2"))


def test_a_kernel_is_called_as_it_is_on_the_host_and_where_there_is_one_device(machine):
    kernels = custom_op(
        "current::alone", lambda x: machine.current, schema="(Tensor x) -> Tensor", device_types=("cpu", "xpu")
    )._record.kernels
    assert kernels.choose("cpu") is kernels["cpu"].function
    machine.count = 1

    assert kernels.choose("xpu") is kernels["xpu"].function


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two CUDA devices")
def test_a_kernel_runs_on_the_second_gpu():
    op = custom_op("current::where", lambda x: x + torch.cuda.current_device(), schema="(Tensor x) -> Tensor")

    assert [1.0] == op(torch.zeros(1, device="cuda:1")).tolist()
    op.register_kernel("cuda", lambda x: x + 2 * torch.cuda.current_device())

    assert [2.0] == op(torch.zeros(1, device="cuda:1")).tolist()
