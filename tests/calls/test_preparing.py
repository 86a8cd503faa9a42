"""What a kernel need not see to: its device is the current one while it runs."""

import contextlib

import pytest
import torch
from torch._subclasses import FakeTensorMode

from custom_autograd import custom_op
from custom_autograd.calls.memory_layouts import on_device_of, wrapper_of
from custom_autograd.core.schema import Schema


@pytest.fixture
def entered(monkeypatch):
    """A machine with accelerators, the first of which is current: which devices were made the current one."""
    found = []

    @contextlib.contextmanager
    def device_index(index):
        found.append(index)
        yield

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "device_index", device_index)
    return found


def on(*devices):
    with FakeTensorMode():
        return [torch.empty(2, device=device) for device in devices]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (on("cuda:1"), [1]),
        (on("cuda:0"), []),
        (on("cpu"), []),
        ([None, on("cuda:1", "cuda:1")], [1]),
        ([torch.device("cuda", 2)], [2]),
        ([torch.device("cuda")], []),
        ([None], []),
    ],
    ids=["second", "current", "host", "list", "device", "device without index", "nothing"],
)
def test_the_device_of_the_first_tensor_is_made_current(entered, values, expected):
    with on_device_of(values):
        pass

    assert expected == entered


def schema_of(name: str, text: str) -> Schema:
    return custom_op(f"preparing::{name}", lambda *args, **kwargs: None, schema=text, replace=True).schema


def test_a_kernel_for_an_accelerator_runs_on_the_device_of_its_tensors(entered):
    schema = schema_of("two", "(Tensor? x, int n, Tensor[] ys, *, float by=2.0) -> Tensor")
    kernel = wrapper_of(schema, "preparing::two", "cuda", {})(lambda x, n, ys, *, by: (entered[-1], n, by))

    assert (1, 3, 5.0) == kernel(None, 3, on("cuda:1"), by=5.0)


def test_an_op_without_tensors_runs_on_the_device_it_is_given(entered):
    schema = schema_of("make", "(int n, Device device) -> Tensor")
    kernel = wrapper_of(schema, "preparing::make", "cuda", {})(lambda n, device: entered[-1])

    assert 3 == kernel(2, torch.device("cuda", 3))


def test_a_kernel_for_the_cpu_is_called_as_it_is():
    def function(x):
        return x

    assert wrapper_of(schema_of("one", "(Tensor x) -> Tensor"), "preparing::one", "cpu", {})(function) is function


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two CUDA devices")
def test_a_kernel_runs_on_the_second_gpu():
    op = custom_op("preparing::where", lambda x: x + 1, schema="(Tensor x) -> Tensor", replace=True)
    op.register_kernel("cuda", lambda x: x + torch.cuda.current_device())

    assert [1.0] == op(torch.zeros(1, device="cuda:1")).tolist()
