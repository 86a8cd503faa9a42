"""Observers see every call once, and its backward under the same number."""

import json
from functools import partial

import pytest
import torch
from tables import each
from torch import Tensor
from torch.profiler import ExecutionTraceObserver

import custom_autograd
from custom_autograd import custom_op
from custom_autograd.native.loading import library


@custom_op("observed::double", reference=True)
def double(x: Tensor) -> Tensor:
    return x * 2


@double.register_backward
def _(grad):
    return 2 * grad


@custom_op("observed::product")
def product(xs: list[Tensor], y: Tensor, scale: float = 1.0) -> Tensor:
    return xs[0] * y * scale


@product.register_backward
def _(grad, xs, y, scale):
    return {"xs": [grad * y * scale], "y": grad * xs[0] * scale}


@custom_op("observed::add_", mutates_args=("t",))
def add_(t: Tensor, x: Tensor) -> Tensor:
    t.add_(x)
    return x * 3


@add_.register_backward
def _(grad_t, grad_output):
    return {"t": grad_t, "x": grad_t + 3 * grad_output}


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


OBSERVERS = {
    "execution trace": names_in_trace,
    "profiler": lambda folder, call: names_in_profile(call),
}


@torch.library.custom_op("observed::of_torch", mutates_args=())
def of_torch(x: Tensor) -> Tensor:
    return x * 2


def are_overloads_shown(observe):
    """From torch 2.15 on, what torch calls on Python objects is not, of torch.library's ops either."""
    return library.module is not None or "observed::of_torch" in observe(lambda: of_torch._opoverload(torch.ones(3)))


@pytest.mark.parametrize("observe", OBSERVERS.values(), ids=OBSERVERS)
def test_a_call_through_the_dispatcher_is_observed(observe, x, tmp_path):
    with custom_autograd.through_dispatcher():
        found = observe(tmp_path, lambda: double(x))

    assert are_overloads_shown(partial(observe, tmp_path)) == found.count("observed::double")


def ones(*shape):
    return torch.ones(*shape, requires_grad=True)


CALLS = {
    "plain": ("double", lambda: double(torch.ones(3))),
    "recorded": ("double", lambda: double(ones(3))),
    "overload": ("double", lambda: double.overload(ones(3))),
    "list and keywords": ("product", lambda: product([ones(3)], scale=2.0, y=ones(3))),
    "mutating": ("add_", lambda: add_(torch.zeros(3), torch.ones(3))),
    "mutating, recorded": ("add_", lambda: add_(torch.zeros(3), ones(3))),
}


@pytest.mark.skipif(library.module is None, reason=library.reason)
@pytest.mark.parametrize("observe", OBSERVERS.values(), ids=OBSERVERS)
@pytest.mark.parametrize(("name", "call"), CALLS.values(), ids=CALLS)
def test_every_call_of_an_op_with_native_calls_is_observed_once(observe, name, call, tmp_path):
    for _ in range(3):
        call()
    found = observe(tmp_path, call)

    assert 1 == found.count(f"observed::{name}")


@pytest.mark.skipif(library.module is None, reason=library.reason)
def test_errors_of_observed_calls_are_those_of_other_calls(x):
    found = []

    def call(*args, **kwargs):
        with pytest.raises(TypeError) as caught:
            double(*args, **kwargs)
        found.append(str(caught.value))

    def call_wrongly():
        call()
        call(x, x)
        call(x, y=1)

    call_wrongly()
    names_in_profile(call_wrongly)

    assert found[:3] == found[3:]


def events_of(call):
    with torch.profiler.profile() as profiler:
        call()
    return [(event.name, event.sequence_nr) for event in profiler.events()]


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")  # torch 2.11
def test_a_profiler_of_python_observes_every_call(x):
    assert 1 == [name for name, _ in events_of(lambda: double(x))].count("observed::double")


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")  # torch 2.11
@each("calls", [1, 4])
@each("name", ["double", "overload", "product", "add_"])
def test_a_recorded_call_is_one_event_with_the_number_of_its_backward(name, calls):
    leaf = ones(3)
    if name == "add_":

        def run():
            written = torch.zeros(3)
            add_(written, leaf)
            return written
    else:
        run = {
            "double": lambda: double(leaf),
            "overload": lambda: double.overload(leaf),
            "product": lambda: product([leaf], leaf * 2),
        }[name]
    for _ in range(calls - 1):
        run()
    found = events_of(lambda: run().sum().backward())
    op = "observed::double" if name == "overload" else f"observed::{name}"
    if name == "overload" and not are_overloads_shown(lambda call: [name for name, _ in events_of(call)]):
        assert op not in dict(found)
        return
    numbers = {event: [number for other, number in found if other == event] for event in (op, f"{op}Backward")}

    assert 1 == len(numbers[op])
    assert numbers[op] == numbers[f"{op}Backward"]
    assert numbers[op] != [-1]


def test_a_call_below_a_transform_is_recorded_at_each_level(x):
    """A level that is left starts at the top of the dispatcher again."""
    assert torch.equal(2 * torch.ones(3), torch.func.grad(lambda x: double(x).sum())(x))
    assert torch.equal(2 * torch.ones(3), torch.func.jvp(double, (x,), (torch.ones(3),))[1])
