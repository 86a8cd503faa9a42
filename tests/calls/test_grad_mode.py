"""Kernels run with grad mode off, in the first call and in every later one, and nothing leaves it off."""

from __future__ import annotations

import enum
import itertools
import signal

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.torch_private import guards

NUMBERS = itertools.count()
WEIGHT = torch.nn.Parameter(torch.full((3,), 2.0))
HOLDER = {"weight": WEIGHT}
TRACKED = {"requires_grad": True}


class Weighted(enum.Enum):
    """An argument whose operators reach a parameter."""

    HEAVY = 1

    def __mul__(self, other):
        return other * WEIGHT


def scaled(x):
    return x * WEIGHT


def closing(weight):
    return lambda x: x * weight


def with_default(x, weight=WEIGHT):
    return x * weight


def by_keyword(x):
    return x * torch.full((3,), 2.0, requires_grad=True)


def by_keywords(x):
    return x * torch.full((3,), 2.0, **TRACKED)


def by_method(x):
    return x * torch.full((3,), 2.0).requires_grad_()


def made_from(x):
    return x * x.new_full((3,), 2.0, requires_grad=True)


def asking(x):
    return x * (WEIGHT if torch.is_grad_enabled() else 1.0)


def asking_by_attribute(x):
    return getattr(x, "scale") * x  # noqa: B009 - the kernel of somebody who writes so


def of_a_global(x):
    return x * HOLDER["weight"]


def importing(x):
    from torch.nn.parameter import Parameter

    return x * Parameter(torch.full((3,), 2.0))


def in_a_comprehension(x):
    return [x * WEIGHT for _ in range(1)][0]  # noqa: RUF015 - it is the comprehension that is asked about


def reciprocal(x):
    return 1 / x


def by_a_parameter(x):
    return x * torch.nn.Parameter(torch.full((3,), 2.0))


def by_a_module(x):
    return torch.nn.Linear(3, 3)(x)


def by_the_gradient(x):
    return x * x.grad


def by_a_shadowed_method(x):
    return x.relu()


def with_grad_mode(x):
    with torch.enable_grad():
        return (x * WEIGHT).detach() * 1


KERNELS = {
    "a global": scaled,
    "a closure": closing(WEIGHT),
    "a default": with_default,
    "a keyword": by_keyword,
    "unpacked keywords": by_keywords,
    "a method": by_method,
    "a factory of the input's": made_from,
    "the mode itself": asking,
    "an attribute of the input": lambda x: x * x.scale,
    "an attribute by name": asking_by_attribute,
    "a global dict": of_a_global,
    "an import": importing,
    "a comprehension": in_a_comprehension,
    "a reflected operator": reciprocal,
    "a parameter": by_a_parameter,
    "a module": by_a_module,
    "the input's gradient": by_the_gradient,
    "a method that was set on the input": by_a_shadowed_method,
    "grad mode switched on": with_grad_mode,
}


def loaded():
    """A plain tensor that carries everything a kernel could find on it."""
    x = torch.ones(3)
    x.scale = WEIGHT
    x.grad = torch.full((3,), 2.0, requires_grad=True)
    x.relu = lambda: x * WEIGHT
    x.reciprocal = lambda: x * WEIGHT
    return x


@each("kernel", KERNELS.values(), ids=KERNELS)
def test_a_kernel_runs_with_grad_mode_off_in_every_call(kernel):
    name = f"kernel_{next(NUMBERS)}"
    op = custom_op(f"grad_mode::{name}", kernel, schema="(Tensor x) -> Tensor")
    overload = getattr(torch.ops.grad_mode, name)
    x = loaded()

    assert [False] * 4 == [op(x).requires_grad for _ in range(4)]
    assert [False] * 3 == [overload(x).requires_grad for _ in range(3)]


@pytest.mark.parametrize("fixed", ["output", "inputs"])
def test_an_op_without_a_gradient_records_none_for_inputs_that_require_one(fixed):
    names = ("output",) if fixed == "output" else ("x", "y")
    schema = "(Tensor x, Tensor y) -> Tensor"
    op = custom_op(f"grad_mode::without_{fixed}", lambda x, y: x * y, schema=schema, non_differentiable=names)
    x = torch.ones(3, requires_grad=True)

    assert [False] * 4 == [op(x, x * 2).requires_grad for _ in range(4)]
    assert [False] * 3 == [op.overload(x, x * 2).requires_grad for _ in range(3)]


def test_an_argument_whose_operators_are_its_own_is_no_number():
    @custom_op("grad_mode::enum")
    def op(mode: Weighted, x: Tensor) -> Tensor:
        return mode * x

    x = torch.ones(3)

    assert [False] * 4 == [op(Weighted.HEAVY, x).requires_grad for _ in range(4)]


# ------------------------------------------------------------------- exceptions of signal handlers, at the worst time


class Alarm(BaseException):
    """What a signal handler raises."""


def raising(*_):
    raise Alarm


@pytest.fixture
def interrupted():
    """A switch of grad mode that is interrupted by a signal right after it was switched off."""
    switch = torch._C._set_grad_enabled

    def switch_and_interrupt(is_on):
        switch(is_on)
        if not is_on:
            signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, raising)
    yield switch_and_interrupt
    signal.signal(signal.SIGALRM, before)
    torch.set_grad_enabled(True)


def copied(x, weight):
    x.copy_(weight)


@pytest.mark.parametrize("way", ["kernel", "writing kernel"])
def test_an_interrupt_leaves_grad_mode_as_it_was(interrupted, way):
    name = f"interrupted_{next(NUMBERS)}"
    if "writing" in way:
        schema, written = "(Tensor(a!) x) -> ()", ("x",)
        op = custom_op(f"grad_mode::{name}", lambda x: copied(x, WEIGHT), schema=schema, mutates_args=written)
    else:
        op = custom_op(f"grad_mode::{name}", lambda x: x * WEIGHT.detach(), schema="(Tensor x) -> Tensor")
    x = torch.ones(3)
    for _ in range(3):
        op(x)
    function = op._record.road.generated["cheap"].kernel_of("cpu")
    function.__globals__["set_grad_enabled"] = interrupted
    with pytest.raises(Alarm):
        function(x)

    assert torch.is_grad_enabled()


@pytest.mark.parametrize("is_on", [True, False])
def test_an_interrupt_of_a_function_that_runs_without_grad_mode_leaves_it_as_it_was(interrupted, monkeypatch, is_on):
    monkeypatch.setattr(guards, "set_grad_enabled", interrupted)
    with torch.set_grad_enabled(is_on):
        with pytest.raises(Alarm):
            guards.without_grad_mode(torch.is_grad_enabled)

        assert is_on == torch.is_grad_enabled()


def test_a_function_runs_without_grad_mode():
    assert not guards.without_grad_mode(torch.is_grad_enabled)
    assert torch.is_grad_enabled()
