"""The check `side_effects` fails a rule that changes what is outside of it, and passes one that fills a cache."""

import collections
import functools
import itertools
import os
import queue
import sys
import weakref
from types import SimpleNamespace

import torch
from tables import each
from torch import Tensor
from torch.autograd import Function, Variable
from verdicts import verdict

from custom_autograd import custom_op, on_backward_end
from custom_autograd.schema.samples import Sample

result_of = verdict("side_effects", lambda make: [Sample(make(4, 3))])
NUMBERS = itertools.count()
CAUSE = (
    "compiled code runs a rule once, while it is traced: "
    "return what is computed; count or record in a hook of a tensor, outside of compiled code"
)


def op_with(backward):
    """An op with this backward."""
    op = custom_op(f"faults_side_effects::op{next(NUMBERS)}", lambda x: x * x, schema="(Tensor x) -> Tensor")
    op.register_backward(backward)
    return op


LIST: list = []
DICT: dict = {}
SET: set = set()
DEQUE: collections.deque = collections.deque(maxlen=4)
COUNTER: collections.Counter = collections.Counter()
CALLS = itertools.count()
NESTED = {"calls": [0]}
SPACE = SimpleNamespace(calls=0)
BUFFER = torch.zeros(1)
number = 0
last = torch.zeros(1)


class Statistics:
    total = 0

    def __init__(self):
        self.calls = 0

    def count(self):
        self.calls += 1


STATISTICS = Statistics()


def appends(grad, x):
    LIST.append(1)
    return 2 * grad * x


def stores(grad, x):
    DICT[len(DICT)] = 1
    return 2 * grad * x


def remembers(grad, x):
    DICT["last"] = grad
    return 2 * grad * x


def adds(grad, x):
    SET.add(len(SET))
    return 2 * grad * x


def queues(grad, x):
    DEQUE.append(grad)
    return 2 * grad * x


def counts(grad, x):
    COUNTER["calls"] += 1
    return 2 * grad * x


def draws_a_number(grad, x):
    next(CALLS)
    return 2 * grad * x


def counts_within(grad, x):
    NESTED["calls"][0] += 1
    return 2 * grad * x


def sets_an_attribute(grad, x):
    SPACE.calls += 1
    return 2 * grad * x


def calls_a_method(grad, x):
    STATISTICS.count()
    return 2 * grad * x


def sets_on_a_class(grad, x):
    Statistics.total += 1
    return 2 * grad * x


def rebinds(grad, x):
    global number
    number += 1
    return 2 * grad * x


def rebinds_a_tensor(grad, x):
    global last
    last = grad
    return 2 * grad * x


def writes_to_a_tensor(grad, x):
    BUFFER.add_(1)
    return 2 * grad * x


def counts_in_a_closure():
    calls = 0

    def backward(grad, x):
        nonlocal calls
        calls += 1
        return 2 * grad * x

    return backward


def helper(grad, seen=[]):  # noqa: B006 - the fault
    seen.append(1)
    return 2 * grad


def appends_to_a_default(grad, x):
    return helper(grad) * x


class Rule:
    def __init__(self):
        self.calls = 0

    def backward(self, grad, x):
        self.calls += 1
        return 2 * grad * x


class Callable(Rule):
    def __call__(self, grad, x):
        return self.backward(grad, x)


FAULTS = {
    "list": (appends, "LIST"),
    "dict": (stores, "DICT"),
    "last value": (remembers, "DICT"),
    "set": (adds, "SET"),
    "deque": (queues, "DEQUE"),
    "counter": (counts, "COUNTER"),
    "itertools.count": (draws_a_number, "CALLS"),
    "nested": (counts_within, "NESTED"),
    "attribute": (sets_an_attribute, "SPACE.calls"),
    "method": (calls_a_method, "STATISTICS.calls"),
    "class": (sets_on_a_class, "Statistics.total"),
    "global": (rebinds, "number"),
    "global tensor": (rebinds_a_tensor, "last"),
    "tensor": (writes_to_a_tensor, "BUFFER"),
    "closure": (counts_in_a_closure(), "calls"),
    "default of a helper": (appends_to_a_default, "seen"),
    "bound method": (Rule().backward, "self.calls"),
    "callable object": (Callable(), "self.calls"),
}


@each(("backward", "name"), FAULTS.values())
def test_a_backward_that_changes_what_it_reaches_fails(backward, name):
    result = result_of(op_with(backward))

    assert "failed" == result.status
    assert result.message.startswith("the backward (test_side_effects.py:")
    assert result.message.endswith(f") changes '{name}', also when it runs again")
    assert CAUSE == result.cause


def asks_the_engine(grad, x):
    Variable._execution_engine.queue_callback(lambda: None)
    return 2 * grad * x


def asks_for_the_end(grad, x):
    on_backward_end(lambda: None)
    return 2 * grad * x


@each(("backward", "name"), [(asks_the_engine, "queue_callback"), (asks_for_the_end, "on_backward_end")])
def test_a_backward_that_asks_for_a_callback_fails(backward, name):
    result = result_of(op_with(backward))

    assert "failed" == result.status
    assert result.message.endswith(f"asks for a callback at the end of the backward, by {name}")
    assert (
        "compiled code runs a rule once, while it is traced: "
        "call custom_autograd.on_backward_end in a hook of a tensor instead" == result.cause
    )


SIZES: dict = {}
SCRATCH: dict = {}


@functools.cache
def factor(count):
    return 2.0


def fills_a_memo(grad, x):
    if x.shape not in SIZES:
        SIZES[x.shape] = torch.full((), 2.0, dtype=x.dtype)
    return SIZES[x.shape] * grad * x


def calls_a_cached_function(grad, x):
    return factor(x.numel()) * grad * x


def works_in_a_buffer(grad, x):
    buffer = SCRATCH.setdefault((x.shape, x.dtype), torch.empty_like(x))
    return buffer.copy_(x).mul_(2).mul(grad)


def keeps_to_itself(grad, x):
    seen = []
    seen.append(grad)
    return 2 * seen[0] * x


HONEST = [fills_a_memo, calls_a_cached_function, works_in_a_buffer, keeps_to_itself]


@each("backward", HONEST)
def test_a_backward_that_only_computes_or_fills_a_cache_passes(backward):
    assert "passed" == result_of(op_with(backward)).status


def saves_on_ctx(ctx, inputs, output):
    ctx.save_for_backward(*inputs)
    ctx.calls = [len(inputs)]


def saves_and_appends(ctx, inputs, output):
    LIST.append(1)
    ctx.save_for_backward(*inputs)


def by_ctx(ctx, grad):
    return 2 * grad * ctx.saved_tensors[0]


def declare_here(setup):
    op = custom_op(f"faults_side_effects::op{next(NUMBERS)}", lambda x: x * x, schema="(Tensor x) -> Tensor")
    op.register_autograd(by_ctx, setup_context=setup)
    return op


def declare_with_torch(setup):
    op = torch.library.custom_op(
        f"faults_side_effects::op{next(NUMBERS)}", lambda x: x * x, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    op.register_autograd(by_ctx, setup_context=setup)
    return op


@each("declare", [declare_here, declare_with_torch])
def test_a_setup_context_may_keep_what_it_likes_on_ctx_and_nowhere_else(declare):
    honest, faulty = (result_of(declare(setup)) for setup in (saves_on_ctx, saves_and_appends))

    assert ["passed", "failed"] == [honest.status, faulty.status]
    assert "changes 'LIST', also when it runs again" in faulty.message


def test_a_jvp_and_a_vmap_rule_that_count_fail():
    op = op_with(keeps_to_itself)

    @op.register_jvp
    def _(tangent_x, x):
        LIST.append(1)
        return 2 * x * tangent_x

    @op.register_vmap
    def _(info, in_dims, x):
        SET.add(len(SET))
        return x * x, in_dims[0]

    report = result_of(op)

    assert "failed" == report.status
    assert "the jvp (test_side_effects.py:" in report.message
    assert "the vmap (test_side_effects.py:" in report.message


class Squared(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        LIST.append(1)
        return 2 * grad * ctx.saved_tensors[0]


def rule_less(x: Tensor) -> Tensor:
    return x * x


def test_what_has_no_rules_of_its_own_is_skipped():
    plain = custom_op("faults_side_effects::plain", rule_less, reference=True)

    assert [
        "torch.compile traces through it, and refuses side effects that it cannot keep",
        "no rule for a derivative is registered",
    ] == [result_of(Squared.apply).message, result_of(plain).message]


def test_the_profile_function_of_the_caller_stays():
    def profile(frame, event, argument):
        pass

    sys.setprofile(profile)
    try:
        result_of(op_with(keeps_to_itself), isolated=False)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)


# -------------------------------------------------------------------------------------------------- found by an attack


class Slotted:
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0


SLOTTED = Slotted()
QUEUE: queue.Queue = queue.Queue()
WEAK: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
NORM = torch.nn.BatchNorm1d(3)
GENERATOR = torch.Generator()
PARAMETER = torch.nn.Parameter(torch.zeros(3))


class Key:
    pass


KEYS: list[Key] = []


def counts_in_a_slot(grad, x):
    SLOTTED.calls += 1
    return 2 * grad * x


def puts(grad, x):
    QUEUE.put(1)
    return 2 * grad * x


def counts_on_itself(grad, x):
    counts_on_itself.calls = getattr(counts_on_itself, "calls", 0) + 1
    return 2 * grad * x


def enters_a_weak_table(grad, x):
    KEYS.append(Key())
    WEAK[KEYS[-1]] = 1
    return 2 * grad * x


def trains(grad, x):
    NORM(grad)
    return 2 * grad * x


def draws(grad, x):
    torch.rand(1, generator=GENERATOR)
    return 2 * grad * x


def accumulates(grad, x):
    with torch.enable_grad():
        PARAMETER.sum().backward()
    return 2 * grad * x


def sets_the_environment(grad, x):
    os.environ["SIDE_EFFECTS"] = str(next(NUMBERS))
    return 2 * grad * x


MISSED = (
    counts_in_a_slot,
    puts,
    counts_on_itself,
    enters_a_weak_table,
    trains,
    draws,
    accumulates,
    sets_the_environment,
)


@each("rule", MISSED)
def test_a_side_effect_in_an_unusual_place_fails(rule):
    result = result_of(op_with(rule))

    assert ("failed", CAUSE) == (result.status, result.cause)


def test_what_the_kernel_counts_is_not_the_rules():
    def kernel(x):
        STATISTICS.calls += 1
        return x * x

    op = custom_op(f"faults_side_effects::op{next(NUMBERS)}", kernel, schema="(Tensor x) -> Tensor")
    op.register_backward(lambda grad, x: 2 * grad * x * (STATISTICS.calls > -1))

    assert "passed" == result_of(op).status


shape: list[int] = []


def test_an_attribute_is_not_the_global_of_its_name():
    def kernel(x):
        shape.append(1)
        return x * x

    op = custom_op(f"faults_side_effects::op{next(NUMBERS)}", kernel, schema="(Tensor x) -> Tensor")
    op.register_backward(lambda grad, x: 2 * grad * x.reshape(x.shape))

    assert "passed" == result_of(op).status
