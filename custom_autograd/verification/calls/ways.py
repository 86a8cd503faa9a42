"""The ways in which a call is made; each gives what a plain call gives, or a derivative that a simple way gives too."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.autograd import forward_ad

from custom_autograd.verification.calls.backward_ways import ACCUMULATED, SAVING_ELSEWHERE, USES_OF_A_GRAPH, varied
from custom_autograd.verification.calls.batches import BATCHES
from custom_autograd.verification.calls.call import (
    Call,
    Outcome,
    UnfitError,
    Way,
    WrongError,
    begin,
    begin_on,
    cotangents_of,
    find_change,
    numbers_like,
    run,
)
from custom_autograd.verification.calls.memory_ways import FILLED
from custom_autograd.verification.calls.subclass_ways import SUBCLASSES
from custom_autograd.verification.harness.differentiable import can_have_gradient, gradients
from custom_autograd.verification.harness.interpreted import find_interpreter
from custom_autograd.verification.harness.settings import torch_threads
from custom_autograd.verification.harness.targets import Function, Target


def _without_grad(target: Target, call: Call) -> Iterator[Outcome]:
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = begin(target, target.call, replace(call, needs=frozenset())).detached()
        yield found  # outside: what is right is computed without the mode


def _twice(target: Target, call: Call) -> Iterator[Outcome]:
    """Give the results of a call after another one with other numbers, and those of the same call again."""
    first = run(target, target.call, call)
    varied(target, call)
    yield first
    yield run(target, target.call, call)


def _in_threads(target: Target, call: Call) -> Iterator[Outcome]:
    """Call in eight threads at once, forward and backward; every second one has other numbers.

    Raises:
        UnfitError: Triton's interpreter runs the kernels, one thread at a time.
    """
    interpreter = find_interpreter(partial(run, target, target.call, call))
    if interpreter is not None:
        raise UnfitError(f"{interpreter}, which one thread at a time may use")
    other = varied(target, call)
    expected = run(target, target.call, other)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # as often as Python can, so that what can go wrong between two lines does
    try:
        for _ in range(ROUNDS):
            found = _at_once(target, [call, other] * (THREADS // 2))
            yield from found[::2]
            for outcome in found[1::2]:
                difference = find_change(outcome, expected)
                if difference is not None:
                    raise WrongError(difference.message)
    finally:
        sys.setswitchinterval(interval)


def _at_once(target: Target, calls: Sequence[Call]) -> list[Outcome]:
    """Return one forward and one backward of each call, each begun together in all threads."""
    barrier = threading.Barrier(len(calls))
    found: dict[int, Outcome] = {}
    raised: list[Exception] = []

    def work(position: int, call: Call) -> None:
        try:
            barrier.wait(PATIENCE)
            begun = begin(target, target.call, call)
            values, cotangents = begun.detached(), cotangents_of(call, begun)
            barrier.wait(PATIENCE)
            found[position] = {**values, **begun.backward(cotangents)}
        except Exception as error:  # noqa: BLE001 - a thread hands over what it raises
            raised.append(error)
            barrier.abort()

    own = [call.map(lambda x: x.detach().clone()) for call in calls]
    workers = [threading.Thread(target=work, args=row, daemon=True) for row in enumerate(own)]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + LIMIT
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
    if any(worker.is_alive() for worker in workers):
        raise WrongError(
            f"not all have ended after {LIMIT:g} s", "a lock that one call holds while it waits for another"
        )
    if raised:
        raise next((error for error in raised if not isinstance(error, threading.BrokenBarrierError)), raised[0])
    return [found[position] for position in range(len(calls))]


THREADS = 8
ROUNDS = 3
PATIENCE = 30.0
"""Seconds after which a thread that waits for the others gives up."""
LIMIT = 120.0
"""Seconds after which threads that have not ended are taken to wait for each other."""


def _in_more_threads(target: Target, call: Call) -> Iterator[Outcome]:
    """Call while torch computes with more threads than there are, three times: who comes first differs."""
    with torch_threads(torch.get_num_threads() + 3):
        found = [run(target, target.call, call) for _ in range(3)]
    yield from found


def _forgotten(target: Target, call: Call) -> Iterator[Outcome]:
    """Call on tensors that nothing else holds: the op holds none of them when results and graph are gone.

    Raises:
        WrongError: one of them is still there.
    """
    own = call.map(lambda x: x.detach().clone())
    names = [f"'{target.name_of(leaf)}'" for leaf in own.sample.leaves()]
    alive = [weakref.ref(x) for x in own.sample.tensors()]
    given = begin(target, target.call, own)
    alive_below = [weakref.ref(x) for x in given.leaves.values()]
    del own, given
    if any(ref() is not None for ref in (*alive, *alive_below)):
        gc.collect()  # a graph that ends in a cycle is freed later
    for ref, name in [*zip(alive, names, strict=True), *((ref, "an input") for ref in alive_below)]:
        if ref() is not None:
            raise WrongError(f"{name} is still held when the call, its results and its graph are gone")
    yield {}


def _after_a_failure(target: Target, call: Call) -> Iterator[Outcome]:
    """Call after a call that ended in an exception, and after a forward whose backward never came."""
    with contextlib.suppress(Exception):
        begin(target, target.call, call.map(lambda x: x.detach().reshape(-1)[:1].reshape((1,) * (x.dim() + 1))))
    begin(target, target.call, call)
    yield run(target, target.call, call)


def _other_kernels(target: Target, call: Call) -> Iterator[Outcome]:
    """Call each kernel by itself, on contiguous tensors, where the op takes the call."""
    plain = replace(call.plain(), needs=frozenset())
    begin(target, target.call, plain)
    for kernel in target.kernels.values():
        with torch.no_grad(), contextlib.suppress(Exception):  # a kernel may refuse what others take
            yield begin(target, kernel, plain).detached()


def _with_hidden(target: Target, call: Call) -> Iterator[Outcome]:
    """Give all outputs, those too that a call does not return."""
    if target.hidden:
        yield begin(target, target.full, replace(call, needs=frozenset())).detached()


def _hidden_of_reference(target: Target, function: Function, call: Call, only: Sequence[str] | None) -> Outcome:
    del function, only
    return begin(target, target.reference or target.full, replace(call, needs=frozenset())).detached()


def _tangent_of(x: Tensor, name: str) -> Tensor:
    return numbers_like(x, f"tangent of {name}")


def _tangents(target: Target, call: Call) -> Iterator[Outcome]:
    """Give the tangent of each result along a direction of all inputs that need a gradient."""
    tensors = [x.detach() for x in call.sample.tensors()]
    if call.shared is not None or any(0 in tensors[i].stride() for i in call.needs):  # torch has no such dual tensors
        raise UnfitError
    with forward_ad.dual_level():
        for position in call.needs:
            x = tensors[position]
            tensors[position] = forward_ad.make_dual(x, _tangent_of(x, str(position)))
        begun = begin_on(target, target.call, call, tensors)
        pairs = [(name, forward_ad.unpack_dual(y).tangent) for name, y in begun.values.items() if can_have_gradient(y)]
        found = {f"tangent of {name}": tangent.detach().clone() for name, tangent in pairs if tangent is not None}
    yield found


def _plain_tangents(target: Target, function: Function, call: Call, only: Sequence[str] | None) -> Outcome:
    """Give the tangents by two backwards: of <u, y> for u, along the direction."""
    del only
    begun = begin(target, function, call)
    rows = list(zip(sorted(call.needs), begun.leaves.values(), strict=True))
    found = {}
    for name in begun.able():
        y = begun.values[name]
        u = torch.zeros_like(y, requires_grad=True)
        grads = gradients([y], [x for _, x in rows], [u], create_graph=True)
        directions = [_tangent_of(x, str(i)) for i, x in rows]
        (tangent,) = gradients(grads, [u], directions, retain_graph=True)
        found[f"tangent of {name}"] = tangent.detach()
    return found


def _second(target: Target, function: Function, call: Call, only: Sequence[str] | None) -> Outcome:
    """Give the gradient of <gradients, v>."""
    begun = begin(target, function, call)
    first = begun.backward(cotangents_of(call, begun, only or None), create_graph=True)
    directions = [numbers_like(g, f"second {name}") for name, g in first.items()]
    grads = gradients(list(first.values()), list(begun.leaves.values()), directions)
    return {f"second {name}": g.detach() for name, g in zip(begun.leaves, grads, strict=True)}


def _second_derivatives(target: Target, call: Call) -> Iterator[Outcome]:
    yield _second(target, target.call, call, ())


HIDDEN = Way("hidden outputs too", _with_hidden, _hidden_of_reference, has_gradients=False)
IN_THREADS = Way(
    f"in {THREADS} threads at once",
    _in_threads,
    cause="state that all threads share, such as a buffer or a variable of the module",
    is_owed=True,
    draws_alike=False,
)

WAYS: tuple[Way, ...] = (
    Way("without a graph", _without_grad, has_gradients=False),
    Way("called twice", _twice),
    FILLED,
    *USES_OF_A_GRAPH,
    ACCUMULATED,
    Way("after a call that failed", _after_a_failure),
    Way("whose tensors are forgotten", _forgotten),
    *SUBCLASSES,
    *SAVING_ELSEWHERE,
    IN_THREADS,
    Way("with more threads of torch", _in_more_threads, draws_alike=False),
    HIDDEN,
    Way("by another kernel", _other_kernels, has_gradients=False),
    Way("jvp", _tangents, _plain_tangents, is_derivative=True),
    Way("second derivative", _second_derivatives, _second, is_derivative=True),
    *BATCHES,
)
