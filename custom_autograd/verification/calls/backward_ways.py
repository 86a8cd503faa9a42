"""Ways that use a graph otherwise than by one forward and one backward, and take over what it saves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from custom_autograd.values.random_state import kept_random_state
from custom_autograd.verification.calls.call import (
    Begun,
    Call,
    Outcome,
    UnfitError,
    Way,
    WrongError,
    begin,
    begin_on,
    cotangents_of,
    leaves_of,
    run,
)
from custom_autograd.verification.harness.base import first_line
from custom_autograd.verification.harness.comparison import is_same
from custom_autograd.verification.harness.settings import move_on, where_draws_begin
from custom_autograd.verification.harness.sweeps import has_arithmetic, is_ordered
from custom_autograd.verification.harness.targets import Target


def plainly(target: Target, call: Call) -> Iterator[Outcome]:
    """Give the outputs and the gradients of one call; its backward leaves what it is given alone."""
    begun = begin(target, target.call, call)
    cotangents = cotangents_of(call, begun)
    before = {name: None if u is None else u.clone() for name, u in cotangents.items()}
    yield {**begun.detached(), **begun.backward(cotangents)}
    for name, u in cotangents.items():
        kept = before[name]
        if u is not None and kept is not None and not torch.equal(u, kept):
            raise WrongError(f"the backward writes to the incoming gradient of {name}, which belongs to the engine")


def varied(target: Target, call: Call) -> Call:
    """Return the call with other numbers, drawn ones too, or as it is if the op refuses those: no sample has them."""
    if call.state is not None:
        call = replace(call, state=where_draws_begin(1))
    for change in (_smaller_and_reversed, _smaller):
        with contextlib.suppress(Exception):
            other = call.map(change)
            run(target, target.call, other)
            return other
    return call


def _smaller_and_reversed(tensor: Tensor) -> Tensor:
    """Return numbers that are sorted in another order, and whose largest stands elsewhere."""
    smaller = _smaller(tensor)
    return smaller if is_ordered(tensor) or not has_arithmetic(tensor) else smaller.flip(tuple(range(tensor.dim())))


def _smaller(tensor: Tensor) -> Tensor:
    return tensor.detach() * 0.97 if has_arithmetic(tensor) else tensor.detach()


def _others_between(target: Target, call: Call) -> Iterator[Outcome]:
    """Call with other numbers before or after, and run one backward after both calls, then both in either order."""
    other = varied(target, call)
    first, _ = begin(target, target.call, call), begin(target, target.call, other)
    yield _ended(call, first)
    before, second = begin(target, target.call, other), begin(target, target.call, call)
    before.backward(cotangents_of(other, before))
    yield _ended(call, second)
    first, after = begin(target, target.call, call), begin(target, target.call, other)
    after.backward(cotangents_of(other, after))
    yield _ended(call, first)


def _ended(call: Call, begun: Begun) -> Outcome:
    return {**begun.detached(), **begun.backward(cotangents_of(call, begun))}


def _backward_again(target: Target, call: Call) -> Iterator[Outcome]:
    """Run a backward, another one with other cotangents, and the first one again."""
    begun = begin(target, target.call, call)
    cotangents = _sent(call, begun)
    first = begun.backward(_copied(cotangents), retain_graph=True)
    kept = {name: grad.clone() for name, grad in first.items()}
    yield first
    begun.backward({name: -0.7 * u for name, u in cotangents.items()}, retain_graph=True)
    for name, grad in first.items():
        if not is_same(grad, kept[name]):
            raise WrongError(
                f"the {name} that one backward returned changes during the next",
                "a buffer that is kept between calls is returned as the gradient",
            )
    yield begun.backward(_copied(cotangents))


def _saved_kept(target: Target, call: Call) -> Iterator[Outcome]:
    """Look at what was saved before and after a backward."""
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.detach())
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        begun = begin(target, target.call, call)
    values = [tensor.clone() for tensor in saved]  # not in pack: a forward may still write to what it has saved
    yield begun.backward(_sent(call, begun))
    for position, (now, before) in enumerate(zip(saved, values, strict=True)):
        if not is_same(now, before):
            raise WrongError(
                f"the backward writes to saved tensor {position}, of shape {tuple(now.shape)}",
                "an operation in place on a saved tensor",
            )


def _other_noise(target: Target, call: Call) -> Iterator[Outcome]:
    """Draw other random numbers between forward and backward, as a model does."""
    if call.state is None:
        raise UnfitError
    begun = begin(target, target.call, call)
    cotangents = _sent(call, begun)
    with kept_random_state():
        move_on({x.device for x in begun.leaves.values()})
        found = begun.backward(cotangents)
    yield found


def _elsewhere(target: Target, call: Call) -> Iterator[Outcome]:
    """Call in one thread and run the backward in another, as engines of devices and data loaders do."""
    with ThreadPoolExecutor(1) as one:
        begun = one.submit(begin, target, target.call, call).result()
    with ThreadPoolExecutor(1) as other:
        yield other.submit(begun.backward, _sent(call, begun)).result()


def _with_graph(target: Target, call: Call) -> Iterator[Outcome]:
    """Record the backward, as a second derivative asks for."""
    begun = begin(target, target.call, call)
    cotangents = _sent(call, begun)
    try:
        found = begun.backward(cotangents, create_graph=True)
    except Exception as error:  # a finding of the check second_order
        raise UnfitError(f"the backward raises {first_line(error)} in grad mode") from error
    yield found


def _accumulated(target: Target, call: Call) -> Iterator[Outcome]:
    """Run a backward for each result alone, and add the gradients."""
    begun = begin(target, target.call, call)
    cotangents = _sent(call, begun)
    if len(cotangents) < 2:
        raise UnfitError
    total = {name: torch.zeros_like(leaf) for name, leaf in begun.leaves.items()}
    for result, u in cotangents.items():
        for name, grad in begun.backward({result: u}, retain_graph=True).items():
            total[name] = total[name] + grad
    yield total


def _sent(call: Call, begun: Begun) -> dict[str, Tensor]:
    """Return the incoming gradients of a graph that has some."""
    found = {name: u for name, u in cotangents_of(call, begun).items() if u is not None}
    if not found or not begun.leaves:
        raise UnfitError
    return found


def _copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _with_copies(target: Target, call: Call) -> Iterator[Outcome]:
    with saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda kept: kept):
        begun = begin(target, target.call, call)
    yield _ended(call, begun)  # outside, as training loops do: a backward may call torch.func, which refuses hooks


def _on_cpu(target: Target, call: Call) -> Iterator[Outcome]:
    with save_on_cpu():
        begun = begin(target, target.call, call)
    yield _ended(call, begun)


def _checkpointed(target: Target, call: Call, *, use_reentrant: bool) -> Iterator[Outcome]:
    """Compute the forward again in the backward, which finds the generator elsewhere."""
    plain = begin(target, target.call, call)
    cotangents = _sent(call, plain)

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        values = begin_on(target, target.call, call, tensors).values
        return tuple(values[name] for name in cotangents)  # the reentrant one gives every output a gradient

    leaves = leaves_of(call)
    with kept_random_state(is_enabled=call.state is not None):
        found = checkpoint(function, *leaves, use_reentrant=use_reentrant)
        if call.state is not None:
            move_on({x.device for x in leaves})
        torch.autograd.backward(found, list(cotangents.values()))  # the reentrant one refuses torch.autograd.grad
    outcome = {name: y.detach() for name, y in zip(cotangents, found, strict=True)}
    for name, position in zip(plain.leaves, sorted(call.needs), strict=True):
        grad = leaves[position].grad
        outcome[name] = torch.zeros_like(leaves[position]) if grad is None else grad
    yield outcome


STATE = "state outside ctx, which the next call overwrites"
SAVED_ELSEWHERE = "tensors saved outside save_for_backward, or a forward that does not do the same again"
RECORDED = "the backward computes something else in grad mode, or from what needs a gradient"
THREAD_STATE = "it reads state that belongs to the thread of the forward"
NOISE = "it draws again what the forward drew, and did not save"

PLAIN = Way("as given", plainly)
SAVED_KEPT = Way("with a look at what is saved", _saved_kept, is_owed=True)
OTHERS_BETWEEN = Way("with another call between forward and backward", _others_between, cause=STATE, is_owed=True)
OTHER_NOISE = Way("with other random numbers drawn before the backward", _other_noise, cause=NOISE, is_owed=True)
AGAIN = Way("with two backwards", _backward_again, cause="it uses up what it reads", is_owed=True)
ELSEWHERE = Way("with its backward in another thread", _elsewhere, cause=THREAD_STATE, is_owed=True)
WITH_GRAPH = Way("with create_graph=True", _with_graph, cause=RECORDED)
ACCUMULATED = Way("with one backward for each result", _accumulated)
PACKED = Way("under saved_tensors_hooks that copy", _with_copies, cause=SAVED_ELSEWHERE, is_owed=True)
ON_CPU = Way("under save_on_cpu", _on_cpu, cause=SAVED_ELSEWHERE, is_owed=True)
CHECKPOINT, REENTRANT_CHECKPOINT = (
    Way(
        f"under checkpoint(use_reentrant={is_reentrant})",
        partial(_checkpointed, use_reentrant=is_reentrant),
        cause=SAVED_ELSEWHERE,
        is_owed=True,
    )
    for is_reentrant in (False, True)
)

USES_OF_A_GRAPH = (SAVED_KEPT, OTHERS_BETWEEN, OTHER_NOISE, AGAIN, ELSEWHERE)
SAVING_ELSEWHERE = (PACKED, ON_CPU, CHECKPOINT, REENTRANT_CHECKPOINT)
