"""The fingerprint of an op changes with whatever its rules read, and is the same in another process."""

import functools
import os
import re
import subprocess
import sys
import types
import weakref
from collections import ChainMap, UserDict, deque
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tables import each
from torch import Tensor, nn
from torch.distributions import AffineTransform, Transform

from custom_autograd import custom_op
from custom_autograd.capabilities.compile_cache import fingerprint, read_rules


def plain(x: Tensor) -> Tensor:
    return x.clone()


def scale_gradient(factor, grad):
    return grad * factor


def without_module(factor):
    """Such as exec makes in an empty scope."""
    scope = {}
    exec(f"def factor(): return {factor}\ndef backward(grad): return grad * factor()", scope)
    return scope["backward"]


def reading(container):
    return lambda grad: grad * len(container)


class InSlots:
    __slots__ = ("factor",)

    def __init__(self, factor: float) -> None:
        self.factor = factor


class Entered:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __enter__(self):
        return self.factor

    def __exit__(self, *_):
        return None


class Described:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __get__(self, instance, owner):
        return self.factor


def using_an_object(make):
    def rule(factor):
        one = make(factor)
        return lambda grad: grad * one.factor

    return lambda: rule(2.0), lambda: rule(3.0)


def by_a_text(factor):
    one = types.SimpleNamespace(factor=factor)
    return lambda grad: grad * getattr(one, "factor")  # noqa: B009 - the text is the point


def within(factor):
    def rule(grad):
        with Entered(factor) as found:
            return grad * found

    return rule


class WithMethod(Entered):
    def get(self):
        return self.factor


@dataclass(frozen=True)
class Frozen:
    factor: float

    def get(self):
        return self.factor


class Dynamic:
    def __init__(self, factor: float) -> None:
        self.known = {"factor": factor}

    def __getattr__(self, name):
        return self.__dict__["known"][name]


class EnumWithMethod(Enum):
    def get(self):
        return self.value


def function_with(factor):
    def function():
        return function.factor

    function.factor = factor
    return function


def module_with(factor):
    module = torch.nn.Module()
    module.register_buffer("factor", torch.full((2,), factor))
    return module


def dispatched(factor):
    @functools.singledispatch
    def of(_=0):
        return 1.0

    of.register(int)(lambda _: factor)
    return of


def with_partialmethod(factor):
    return type("Owner", (), {"factor": functools.partialmethod(lambda _, found: found, factor)})()


def with_cached_property(factor):
    return type("Owner", (), {"factor": functools.cached_property(lambda _: factor)})()


KEPT = {}
READ = {
    "by a function": lambda one: (lambda passed: passed.factor)(one),
    "by an attribute": lambda one: one.factor,
    "by a method": lambda one: one.get(),
    "by get": lambda one: one.get(),
    "by asdict": lambda one: sum(asdict(one).values()),
    "by a call": lambda one: one(),
    "by a call with a number": lambda one: one(1.0),
    "by next": next,
    "by float": float,
}


def using(how, make, *, named=False):
    def rule(factor):
        one, read = make("factor", default=factor) if named else make(factor), READ[how]
        return lambda grad: grad * read(one)

    return lambda: rule(2.0), lambda: rule(3.0)


def by_environment(factor):
    os.environ["FACTOR_OF_A_TEST"] = factor
    return lambda grad: grad * float(os.environ["FACTOR_OF_A_TEST"])


class OwnSlope(nn.LeakyReLU):
    pass


class CallableList(list):
    def __call__(self, x):
        return x * self[0]


def module_of(factor):
    class Scaled(nn.Module):
        def forward(self, x):
            return x * factor

    return Scaled()


class AbstractTransform(Transform):
    bijective = True


def transform_of(factor):
    class Scaled(AbstractTransform):
        def _call(self, x):
            return x * factor

    return Scaled()


def function_of(forward=2.0, backward=2.0):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * forward

        @staticmethod
        def backward(ctx, grad):
            return grad * backward

    return Scaled


CALLABLE = {
    "a method of a dict": lambda factor: {1.0: factor}.get,
    "a method of an array": lambda factor: np.full(2, factor).take,
    "a method of a tensor": lambda factor: torch.full((2,), factor).mul,
    "the forward of a module of torch": lambda factor: nn.LeakyReLU(factor).forward,
    "a module of a user": module_of,
    "a module in a module of torch": lambda factor: nn.Sequential(module_of(factor)),
    "a method that a class of torch calls": transform_of,
    "the forward of a Function": lambda factor: function_of(forward=factor).apply,
    "the backward of a Function": lambda factor: function_of(backward=factor).apply,
    "a polynomial of NumPy": lambda factor: np.polynomial.Polynomial([factor]),
    "a transform of torch": lambda factor: AffineTransform(0.0, factor),
    "a module of torch that is called": nn.LeakyReLU,
    "the modules of a sequence": lambda factor: nn.Sequential(nn.LeakyReLU(factor)),
    "a class derived from a module of torch": OwnSlope,
    "a list that can be called": lambda factor: CallableList([factor]),
}
"""Objects whose class, of torch or of another package, reads attributes that no code of a rule names."""


VALUES = {
    "a decimal number": Decimal,
    "a fraction": Fraction,
    "a chain of dicts": lambda factor: ChainMap({"a": factor}),
    "a dict of the standard library": lambda factor: UserDict(a=factor),
    "a regular expression": lambda factor: re.compile(str(factor)),
    "a getter": lambda factor: itemgetter(int(factor)),
    "a slice": lambda factor: slice(0, int(factor)),
    "a span of time": lambda factor: timedelta(seconds=factor),
    "a path": lambda factor: Path(str(factor)),
    "a dtype of NumPy": lambda factor: np.dtype(f"f{4 * int(factor - 1)}"),
    "an array of objects": lambda factor: np.array([factor, "a"], dtype=object),
    "a tensor": lambda factor: torch.full((2,), factor),
    "a transposed tensor": lambda factor: torch.full((2, 3), factor).T,
    "a limit of a dtype": lambda factor: torch.finfo(torch.float32 if factor == 2 else torch.float64),
}


RULES = {
    "an object of another package": using_an_object(lambda factor: types.SimpleNamespace(factor=factor)),
    "a slot": using_an_object(InSlots),
    "a descriptor": using_an_object(lambda factor: type("Owner", (), {"factor": Described(factor)})),
    "a property of a metaclass": using_an_object(
        lambda factor: type("Meta", (type,), {"factor": property(lambda _: factor)})("Owner", (), {})
    ),
    "an Enum": (lambda: reading([Enum("E", {"A": 2.0}).A]), lambda: reading([Enum("E", {"A": 3.0}).A])),
    "an array": (lambda: reading(np.full(3, 2.0)), lambda: reading(np.full(3, 3.0))),
    "a deque": (lambda: reading(deque([1.0])), lambda: reading(deque([2.0]))),
    "an attribute that a text names": (lambda: by_a_text(2.0), lambda: by_a_text(3.0)),
    "what a with statement calls": (lambda: within(2.0), lambda: within(3.0)),
    "its code": (lambda: lambda grad: grad * 2, lambda: lambda grad: grad * 3),
    "a list that it reads": (lambda: reading([1.0]), lambda: reading([2.0])),
    "a dict that it reads": (lambda: reading({"a": 1.0}), lambda: reading([2.0])),
    "a tuple that it reads": (lambda: reading((1.0, "b")), lambda: reading([2.0])),
    "what partial bound": (
        lambda: functools.partial(scale_gradient, 2.0),
        lambda: functools.partial(scale_gradient, 3.0),
    ),
    "a function of torch": (lambda: reading([torch.sin]), lambda: reading([torch.cos])),
    "an overload of torch": (
        lambda: reading([torch.ops.aten.sin.default]),
        lambda: reading([torch.ops.aten.cos.default]),
    ),
    "a dtype": (lambda: reading([torch.float32]), lambda: reading([torch.float64])),
    "a function without a module": (lambda: without_module(2), lambda: without_module(3)),
    "what a function reads of its argument": using("by a function", InSlots),
    "what a method reads": using("by a method", WithMethod),
    "what a frozen dataclass reads": using("by a method", Frozen),
    "what an attribute gives that is found when it is asked for": using("by an attribute", Dynamic),
    "a method of a list": using("by a method", lambda factor: type("L", (list,), {"get": lambda self: factor})([1])),
    "an attribute of a number": using("by an attribute", lambda factor: type("F", (float,), {"factor": factor})(1)),
    "an attribute of a function": using("by a function", function_with),
    "a module of torch": using("by an attribute", module_with),
    "an Enum with a method": using("by a method", lambda factor: EnumWithMethod("E", {"A": factor}).A),
    "a value of a context": using("by get", ContextVar, named=True),
    "a reference": using("by a call", lambda factor: weakref.ref(KEPT.setdefault(factor, WithMethod(factor)))),
    "a singledispatch function": using("by a call", dispatched),
    "all attributes of an object": using("by asdict", Frozen),
    "a partialmethod": using("by an attribute", with_partialmethod),
    "a cached property": using("by an attribute", with_cached_property),
    "an iterator": using("by next", lambda factor: iter([factor])),
    "an environment variable": (lambda: by_environment("2.0"), lambda: by_environment("3.0")),
    **{name: using("by float", make) for name, make in VALUES.items()},
    **{name: using("by a call with a number", make) for name, make in CALLABLE.items()},
}
"""Two functions that make a rule each; the first makes the same rule whenever it is called."""


def number_of(rule):
    op = custom_op("fingerprint::op", plain, replace=True)
    op.register_backward(rule)
    return fingerprint(op._record)


@each(("make", "make_another"), RULES.values(), ids=RULES)
def test_it_follows_a_rule_and_nothing_else(make, make_another):
    assert number_of(make()) == number_of(make()) != number_of(make_another())


@torch.library.custom_op("fingerprint::of_the_library", mutates_args=())
def of_the_library(x: Tensor) -> Tensor:
    return x.clone()


def test_an_op_of_torch_is_read_by_its_name():
    op = custom_op("fingerprint::calling", plain, replace=True)
    op.register_backward(lambda grad: of_the_library(grad))

    assert [] == read_rules(op._record).unread


def test_what_cannot_be_read_is_said():
    table = torch.ones(2, device="meta")
    op = custom_op("fingerprint::of_a_table", plain, replace=True)
    op.register_backward(lambda grad: grad * table)

    assert ["a Tensor"] == read_rules(op._record).unread


def test_it_is_the_same_in_another_process():
    program = "from test_fingerprint import RULES, number_of\nprint([number_of(make()) for make, _ in RULES.values()])"
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "17",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    ).stdout

    assert found.strip() == str([number_of(make()) for make, _ in RULES.values()])


def product(x: Tensor, y: Tensor) -> Tensor:
    return x * y


OPTIONS = {
    "an input without a gradient": lambda op: op("a", non_differentiable=("y",)),
    "gradients that are not filled": lambda op: op("c", materialize_grads=False),
    "a backward that is not differentiable": lambda op: op("d", once_differentiable=True),
}


@pytest.mark.parametrize("declare", OPTIONS.values(), ids=OPTIONS)
def test_it_follows_the_options_of_an_op_and_of_its_rules(declare):
    def number(name, once_differentiable=False, materialize_grads=True, **options):
        op = custom_op(f"fingerprint::options_{name}", product, replace=True, **options)
        op.register_backward(
            lambda grad, x, y: {"x": grad * y, "y": grad * x},
            once_differentiable=once_differentiable,
            materialize_grads=materialize_grads,
        )
        return fingerprint(op._record)

    assert number("plain") == number("again") != declare(number)


class Settings:
    factor = 2.0

    @staticmethod
    def of(x):
        return x * Settings.factor


class Scaling:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x):
        return x * self.factor

    def method(self, x):
        return self(x)


module = types.ModuleType("module_of_a_user")


def number_with(name: str, reference) -> int:
    op = custom_op(f"fingerprint::{name}", plain, inline="reference", replace=True)
    op.register_fake(torch.empty_like, replace=True)
    op.register_reference(reference, replace=True)
    return fingerprint(op._record)


def first_helper(x):
    return second_helper(x)


def second_helper(x):
    return third_helper(x)


def third_helper(x):
    return fourth_helper(x)


def fourth_helper(x):
    return fifth_helper(x)


def fifth_helper(x):
    return x * Settings.factor


class Pair(NamedTuple):
    a: Tensor
    b: Tensor

    def scaled(self):
        return self.a * 2


class Quoted(NamedTuple):
    a: "Tensor"
    b: "Tensor"


class TestWhatItReaches:
    @pytest.mark.parametrize(
        "reference",
        [
            lambda x: x * Settings.factor,
            lambda x: Settings.of(x),
            lambda x: first_helper(x),
            lambda x: {"go": fifth_helper}["go"](x),
            functools.partial(fifth_helper),
        ],
    )
    def test_an_attribute_of_a_class(self, monkeypatch, reference):
        before = number_with("attribute", reference)
        monkeypatch.setattr(Settings, "factor", 3.0)

        assert before != number_with("attribute", reference)

    @pytest.mark.parametrize("reference", [lambda x: x * module.factor, lambda x: module.scale(x)])
    def test_an_attribute_of_a_module(self, monkeypatch, reference):
        def scale_by(factor):
            scope = {"factor": factor}
            exec("def scale(x): return x * factor", scope)
            monkeypatch.setattr(module, "factor", factor, raising=False)
            monkeypatch.setattr(module, "scale", scope["scale"], raising=False)

        scale_by(2.0)
        before = number_with("module", reference)
        scale_by(3.0)

        assert before != number_with("module", reference)

    @pytest.mark.parametrize("make", [Scaling, lambda factor: Scaling(factor).method], ids=["callable", "method"])
    def test_an_attribute_of_an_object(self, make):
        assert number_with("object", make(2.0)) == number_with("object", make(2.0))
        assert number_with("object", make(2.0)) != number_with("object", make(3.0))

    @pytest.mark.parametrize("by_name", [False, True])
    def test_another_op(self, by_name):
        def number(factor):
            inner = custom_op("fingerprint::inner", plain, inline="reference", replace=True)
            inner.register_reference(lambda x: x * factor)
            if by_name:
                return number_with("outer", lambda x: torch.ops.fingerprint.inner(x))
            return number_with("outer", lambda x: inner(x))

        assert number(2.0) == number(2.0)
        assert number(2.0) != number(3.0)

    def test_two_functions_that_read_one_module(self, monkeypatch):
        monkeypatch.setattr(module, "factor", 2.0, raising=False)
        monkeypatch.setattr(module, "other", 2.0, raising=False)

        def reading_other(x):
            return x * module.other

        def reference(x):
            return reading_other(x) * module.factor

        before = number_with("both", reference)
        monkeypatch.setattr(module, "other", 3.0, raising=False)

        assert before != number_with("both", reference)

    def test_a_method_of_a_container(self, monkeypatch):
        def reference(pair: Pair) -> Tensor:
            return pair.scaled()

        op = custom_op("fingerprint::of_a_pair", reference, reference=True)
        before = fingerprint(op._record)
        monkeypatch.setattr(Pair, "scaled", lambda pair: pair.a * 3)

        assert before != fingerprint(op._record)

    def test_annotations_in_quotes(self):
        def reference(pair: Quoted) -> Tensor:
            return pair.a * 2

        op = custom_op("fingerprint::of_quoted", reference, reference=True)

        assert [] == read_rules(op._record).unread
