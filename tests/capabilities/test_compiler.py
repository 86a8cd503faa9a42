"""A changed rule is never served from a compile cache, neither on disk nor in the process."""

import functools
import os
import subprocess
import sys
import types
from collections import deque
from enum import Enum
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tables import each
from torch import Tensor
from torch.testing import assert_close

from custom_autograd import custom_op
from custom_autograd.capabilities.compile_cache import fingerprint

PROGRAM = """
import os, sys
import torch
import torch._inductor.compile_fx  # here, once: the children below begin with it
from torch import Tensor
from custom_autograd import custom_op

def run(helper, gradient):
    @custom_op("cached::identity")
    def identity(x: Tensor) -> Tensor:
        return x.clone()

    identity.register_fake(torch.empty_like)
    scope = {}
    exec(f"def factor(): return {helper}\\ndef backward(grad): return {gradient}", scope)
    identity.register_backward(scope["backward"])
    f = torch.compile(lambda x: identity(x), fullgraph=True)  # nothing else: no C++ has to be compiled
    x = torch.ones(4, requires_grad=True)
    f(x).backward(torch.full_like(x, 3))
    counters = torch._dynamo.utils.counters["aot_autograd"]
    print(x.grad[0].item(), counters["autograd_cache_hit"], counters["autograd_cache_miss"], flush=True)

for case in sys.argv[1:]:
    child = os.fork()
    if not child:
        run(*case.split(";"))
        os._exit(0)
    os.waitpid(child, 0)
"""


def run(folder, *cases):
    """For each helper and gradient the compiled gradient, and the hits and misses of AOTAutograd's cache."""
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    }
    command = [sys.executable, "-c", PROGRAM, *cases]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return [tuple(map(float, line.split())) for line in finished.stdout.splitlines()]


@pytest.mark.slow
def test_a_changed_backward_or_a_function_that_it_calls_is_not_served_from_the_cache_on_disk(tmp_path):
    """Each case in a process of its own; the second shows that the cache works where nothing changed."""
    cases = ["1;grad * 2 * factor()", "1;grad * 2 * factor()", "1;grad * 10 * factor()", "2;grad * 2 * factor()"]

    assert [(6, 0, 1), (6, 1, 0), (30, 0, 1), (12, 0, 1)] == run(tmp_path, *cases)


@custom_op("compiler::scaled")
def scaled(x: Tensor) -> Tensor:
    return x.clone()


@scaled.register_fake
def _(x):
    return torch.empty_like(x)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_replaced_backward_is_traced_anew_in_the_same_process():
    f = torch.compile(lambda x: scaled(x).sum(), backend="aot_eager", fullgraph=True)
    x = torch.ones(2, requires_grad=True)
    for factor in (2.0, 10.0, 3.0):
        scaled.register_backward(lambda grad, factor=factor: grad * factor, replace=True)

        assert_close(torch.autograd.grad(f(x), x)[0], torch.full((2,), factor))


def weighted(x: Tensor, weight: Tensor | None) -> Tensor:
    return x.clone() if weight is None else x * weight


@pytest.mark.usefixtures("fresh_compiler")
class TestAnOpOfTensorsThatNoEagerCallHasSeen:
    """Dynamo traces code that nothing was generated for: see execution/passing.py."""

    @staticmethod
    def declare():
        op = custom_op("compiler::weighted", weighted, replace=True)
        op.register_fake(lambda x, weight: torch.empty_like(x))
        return op

    def test_it_takes_arguments_as_it_does_in_eager(self):
        op, x = self.declare(), torch.ones(2)
        f = torch.compile(lambda: [op(x, None), op(x, weight=2 * x), op(weight=3 * x, x=x)], backend="eager")

        assert [1, 2, 3] == [y[0].item() for y in f()]
        assert "__call__" in vars(type(op))  # that of passing.py

    @pytest.mark.parametrize(
        ("call", "text"),
        [
            (lambda op, x: op(x), r"compiler::weighted\(\) missing 1 required positional argument: 'weight'"),
            (lambda op, x: op(x, x, x), r"compiler::weighted\(\) takes 2 positional arguments but 3 were given"),
            (lambda op, x: op(x, y=x), "got an unexpected keyword argument 'y'"),
        ],
        ids=["too few", "too many", "unknown"],
    )
    def test_a_wrong_call_raises_what_it_raises_in_eager(self, call, text):
        op, x = self.declare(), torch.ones(2)

        with pytest.raises(TypeError, match=text):
            torch.compile(call, backend="eager")(op, x)

    def test_callers_stay_compiled_after_the_first_eager_call(self):
        op, x, graphs = self.declare(), torch.ones(2), []
        f = torch.compile(lambda x: op(x, x), backend=lambda graph, inputs: graphs.append(graph) or graph)
        f(x)
        op(x, x)
        f(x)

        assert 1 == len(graphs)


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
}


@each(("make", "make_another"), RULES.values(), ids=RULES)
def test_the_fingerprint_follows_a_rule_and_nothing_else(make, make_another):
    def declare(number, rule):
        op = custom_op(f"compiler::fingerprint_{number}", plain, replace=True)
        op.register_backward(rule)
        return fingerprint(op._record)

    assert declare(1, make()) == declare(2, make()) != declare(3, make_another())


def product(x: Tensor, y: Tensor) -> Tensor:
    return x * y


OPTIONS = {
    "an input without a gradient": lambda op: op("a", non_differentiable=("y",)),
    "gradients that are not filled": lambda op: op("c", materialize_grads=False),
    "a backward that is not differentiable": lambda op: op("d", once_differentiable=True),
}


@pytest.mark.parametrize("declare", OPTIONS.values(), ids=OPTIONS)
def test_the_fingerprint_follows_the_options_of_an_op_and_of_its_rules(declare):
    def number(name, once_differentiable=False, materialize_grads=True, **options):
        op = custom_op(f"compiler::options_{name}", product, replace=True, **options)
        op.register_backward(
            lambda grad, x, y: {"x": grad * y, "y": grad * x},
            once_differentiable=once_differentiable,
            materialize_grads=materialize_grads,
        )
        return fingerprint(op._record)

    assert number("plain") == number("again") != declare(number)


def doubled(x):
    return x * Settings.factor


@custom_op("compiler::applied", static="function", reference=True)
def applied(x: Tensor, function) -> Tensor:
    return function(x)


@custom_op("compiler::by_settings", reference=True)
def by_settings(x: Tensor) -> Tensor:
    return x * Settings.factor


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("call", [lambda x: applied(x, doubled), by_settings], ids=["static argument", "rule"])
def test_each_compilation_counts_what_is_read_then(monkeypatch, call):
    """The entries that a process adds to the cache are those of the values that it has when it adds them."""

    def key():
        torch._dynamo.reset()
        torch.compile(lambda x: call(x), backend="eager")(torch.ones(2))
        return torch.compiler.config.cache_key_tag

    before, again = key(), key()
    monkeypatch.setattr(Settings, "factor", 3.0)

    assert before == again != key()


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


def number_of(name: str, reference) -> int:
    op = custom_op(f"compiler::{name}", plain, inline="reference", replace=True)
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


class TestWhatTheFingerprintReaches:
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
        before = number_of("attribute", reference)
        monkeypatch.setattr(Settings, "factor", 3.0)

        assert before != number_of("attribute", reference)

    @pytest.mark.parametrize("reference", [lambda x: x * module.factor, lambda x: module.scale(x)])
    def test_an_attribute_of_a_module(self, monkeypatch, reference):
        def scale_by(factor):
            scope = {"factor": factor}
            exec("def scale(x): return x * factor", scope)
            monkeypatch.setattr(module, "factor", factor, raising=False)
            monkeypatch.setattr(module, "scale", scope["scale"], raising=False)

        scale_by(2.0)
        before = number_of("module", reference)
        scale_by(3.0)

        assert before != number_of("module", reference)

    @pytest.mark.parametrize("make", [Scaling, lambda factor: Scaling(factor).method], ids=["callable", "method"])
    def test_an_attribute_of_an_object(self, make):
        assert number_of("object", make(2.0)) == number_of("object", make(2.0))
        assert number_of("object", make(2.0)) != number_of("object", make(3.0))

    @pytest.mark.parametrize("by_name", [False, True])
    def test_another_op(self, by_name):
        def number(factor):
            inner = custom_op("compiler::inner", plain, inline="reference", replace=True)
            inner.register_reference(lambda x: x * factor)
            if by_name:
                return number_of("outer", lambda x: torch.ops.compiler.inner(x))
            return number_of("outer", lambda x: inner(x))

        assert number(2.0) == number(2.0)
        assert number(2.0) != number(3.0)

    def test_two_functions_that_read_one_module(self, monkeypatch):
        monkeypatch.setattr(module, "factor", 2.0, raising=False)
        monkeypatch.setattr(module, "other", 2.0, raising=False)

        def reading_other(x):
            return x * module.other

        def reference(x):
            return reading_other(x) * module.factor

        before = number_of("both", reference)
        monkeypatch.setattr(module, "other", 3.0, raising=False)

        assert before != number_of("both", reference)

    def test_a_method_of_a_container(self, monkeypatch):
        def reference(pair: Pair) -> Tensor:
            return pair.scaled()

        op = custom_op("compiler::of_a_pair", reference, reference=True)
        before = fingerprint(op._record)
        monkeypatch.setattr(Pair, "scaled", lambda pair: pair.a * 3)

        assert before != fingerprint(op._record)
