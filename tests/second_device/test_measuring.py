"""Measurements wait for the device that they are made on, whatever its type."""

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from custom_autograd import custom_op
from custom_autograd.benchmarking.machine import name_of_accelerator, waiting_for
from custom_autograd.benchmarking.memory import peak_memory
from custom_autograd.cli.main import main

pytestmark = pytest.mark.slow

OPS = """
from custom_autograd import Sample, custom_op
from torch import Tensor

@custom_op("measured::double", reference=True)
def double(x: Tensor) -> Tensor:
    return x * 2

@double.register_samples
def _(make):
    yield Sample(make(3))
"""


@pytest.fixture
def waits(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.second, "synchronize", lambda device=None: seen.append(device))
    return seen


@pytest.mark.parametrize(("device", "expected"), [("second", [None]), ("second:0", [0]), ("cpu", [])])
def test_the_work_on_a_device_is_waited_for(waits, device, expected):
    waiting_for(device)()

    assert expected == waits


def test_the_bench_command_measures_on_the_device(waits, tmp_path):
    path = tmp_path / "measured_ops.py"
    path.write_text(OPS)
    written = tmp_path / "figures.json"
    status = main(["bench", str(path), "--device", "second", "--seconds", "0.01", "--json", str(written)])
    figures = json.loads(written.read_text())

    assert 0 == status
    assert len(waits) > 10
    assert figures["rows"]
    assert "second" == figures["machine"]["gpu"] == name_of_accelerator()


def test_a_device_that_does_not_count_its_memory_raises():
    with pytest.raises(NotImplementedError, match=r"torch\.second does not count the memory of its devices"):
        peak_memory(lambda: None, "second")


def test_flops_are_those_of_the_reference():
    op = custom_op("measured::product", lambda x, y: x @ y, schema="(Tensor x, Tensor y) -> Tensor", reference=True)
    found = []
    for device in ("cpu", "second"):
        x = torch.ones(2, 3, device=device, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            op(x, torch.ones(3, 4, device=device)).sum().backward()
        found.append(counter.get_total_flops())

    assert [3 * 2 * 2 * 3 * 4] * 2 == found  # the forward, again in the backward, and the gradient of x
