"""Observers that are started below Python see calls that are sent through the dispatcher."""

import json

import pytest
import torch
from torch import Tensor
from torch.profiler import ExecutionTraceObserver

import custom_autograd
from custom_autograd import custom_op


@custom_op("observed::double", reference=True)
def double(x: Tensor) -> Tensor:
    return x * 2


@pytest.fixture
def x():
    """An input for which direct calls are known."""
    found = torch.ones(3)
    for _ in range(3):
        double(found)
    return found


def names_in_trace(folder, call):
    observer = ExecutionTraceObserver().register_callback(str(folder / "trace.json"))
    observer.start()
    call()
    observer.stop()
    observer.unregister_callback()
    return [node["name"] for node in json.loads((folder / "trace.json").read_text())["nodes"]]


def names_in_profile(call):
    """Of a profiler that is started as other programs start it: Python's own flag is not set."""
    profiler = torch._C._autograd
    activities = {torch.profiler.ProfilerActivity.CPU}
    config = torch._C._profiler._ExperimentalConfig()
    kind = torch._C._profiler.ProfilerState.KINETO
    given = torch._C._profiler.ProfilerConfig(kind, False, False, False, False, False, config)
    profiler._prepare_profiler(given, activities)
    profiler._enable_profiler(given, activities)
    call()
    return [event.name() for event in profiler._disable_profiler().events()]


@pytest.mark.parametrize("observe", [names_in_trace, names_in_profile], ids=["execution trace", "profiler"])
def test_a_call_through_the_dispatcher_is_observed(observe, x, tmp_path):
    arguments = (tmp_path,) if observe is names_in_trace else ()
    with custom_autograd.through_dispatcher():
        found = observe(*arguments, lambda: double(x))

    assert 1 == found.count("observed::double")


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")  # torch 2.11
def test_a_profiler_of_python_observes_every_call(x):
    with torch.profiler.profile() as profiler:
        double(x)

    assert 1 == [event.name for event in profiler.events()].count("observed::double")
