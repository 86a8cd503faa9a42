"""One call with its gradients: `Call`, what it gives by name, and the ways in which it can be made.

call = Call(sample, frozenset({0, 1}))
run(target, target.call, call)     {"'out'": ..., "written 'state'": ..., "gradient of 'x'": ...}
"""

import contextlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import RandomState, kept_random_state
from custom_autograd.verification.harness.agreement import copied
from custom_autograd.verification.harness.base import NothingToCheckError
from custom_autograd.verification.harness.comparison import Difference, find_difference, is_same, require_same
from custom_autograd.verification.harness.differentiable import (
    can_have_gradient,
    differentiable_positions,
    function_of,
    gradients,
    require_gradient,
)
from custom_autograd.verification.harness.records import result_names
from custom_autograd.verification.harness.sweeps import copy
from custom_autograd.verification.harness.targets import Function, Target, call_on, dense

Outcome: TypeAlias = Mapping[str, Tensor]
"""Outputs, inputs that were written to, and gradients, each by the name that messages give it."""

Cotangent: TypeAlias = Callable[[Tensor, int], Tensor | None]
"""Changes the cotangent of a result, given by its position; None leaves the result out of the backward."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is to be made.

    Args:
        sample: its arguments; its tensors lie in memory as the op is to get them.
        needs: which tensors, by their position among the leaves, require a gradient.
        cotangent: changes each incoming gradient; None leaves them contiguous.
        shared: two positions at which one tensor is given.
        is_apart: whether the second of the two is a copy of it.
        state: where random numbers begin in each forward; None leaves them alone, as calls in several threads must:
            torch deadlocks where two threads ask for the state at once and Python collects garbage while one is given
            it (torch 2.13 holds the generator's lock meanwhile).
        same: arguments that give the same results, from which those are known; None for `sample`.
    """

    sample: Sample
    needs: frozenset[int]
    cotangent: Cotangent | None = None
    shared: tuple[int, int] | None = None
    is_apart: bool = False
    state: RandomState | None = None
    same: Sample | None = None

    def plain(self) -> "Call":
        """Return the call with equal numbers: contiguous, in tensors of their own, zeros for cotangents left out."""

        def cotangent(u: Tensor, position: int) -> Tensor:
            found = u if self.cotangent is None else self.cotangent(u, position)
            return torch.zeros_like(u) if found is None else contiguous(found)

        sample = (self.same or self.sample).map(contiguous)
        return replace(self, sample=sample, cotangent=cotangent, is_apart=True, same=None)

    def with_cotangent(self, function: Callable[[Tensor], Tensor]) -> "Call":
        """Return the call with a function applied to each of its cotangents."""
        before = self.cotangent

        def after(u: Tensor, position: int) -> Tensor | None:
            found = u if before is None else before(u, position)
            return None if found is None else function(found)

        return replace(self, cotangent=after)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Call":
        """Return the call with a function applied to each tensor."""
        same = None if self.same is None else self.same.map(function)
        return replace(self, sample=self.sample.map(function), same=same)


def contiguous(tensor: Tensor) -> Tensor:
    """Return a contiguous copy without lazy conjugation or negation; a sparse tensor as it is."""
    if tensor.layout != torch.strided:
        return tensor.detach()
    return tensor.detach().clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()


def kept(outcome: Outcome) -> dict[str, Tensor]:
    """Return copies, which stay as they are if the op hands out the same memory again."""
    return {name: y.detach().clone() for name, y in outcome.items()}


@dataclass(frozen=True, slots=True)
class Begun:
    """A forward whose backward is still to come.

    Args:
        values: outputs and written inputs, by name.
        leaves: the tensors that require a gradient, by the name of their gradient.
        is_random: whether random numbers are put back after each backward.
    """

    values: Outcome
    leaves: Mapping[str, Tensor]
    is_random: bool = False

    def able(self) -> list[str]:
        """Return the names of the results that a gradient flows through."""
        return [name for name, y in self.values.items() if y.requires_grad and can_have_gradient(y)]

    def recorded(self) -> list[Tensor]:
        """Return the results that a gradient flows through, with their graph."""
        return [self.values[name] for name in self.able()]

    def detached(self) -> dict[str, Tensor]:
        """Return the results without their graph."""
        return {name: y.detach() for name, y in self.values.items()}

    def backward(
        self, cotangents: Mapping[str, Tensor | None], *, retain_graph: bool = False, create_graph: bool = False
    ) -> dict[str, Tensor]:
        """Return the gradients by name; zeros where nothing connects."""
        outputs, leaves = [self.values[name] for name in cotangents], list(self.leaves.values())
        sent = list(cotangents.values())
        with kept_random_state(is_enabled=self.is_random):
            grads = gradients(outputs, leaves, sent, retain_graph=retain_graph, create_graph=create_graph)
        return dict(zip(self.leaves, grads, strict=True))


def begin(target: Target, function: Function, call: Call) -> Begun:
    """Return the forward of a call, on its own tensors; those that the op writes to are copied."""
    return begin_on(target, function, call, leaves_of(call))


def leaves_of(call: Call) -> list[Tensor]:
    """Return the tensors of a call, those that need a gradient as leaves of a graph."""
    leaves = [x.detach().requires_grad_(i in call.needs) for i, x in enumerate(call.sample.tensors())]
    if call.shared is not None:
        shared = leaves[call.shared[0]]
        leaves[call.shared[1]] = shared.clone() if call.is_apart else shared
    return leaves


def begin_on(target: Target, function: Function, call: Call, leaves: Sequence[Tensor]) -> Begun:
    """Return the forward of a call on other tensors, which may be dual, batched, or part of a graph."""
    sample, written = call.sample, sorted(target.written_positions(call.sample))
    values = list(leaves)
    for i in written:
        values[i] = leaves[i].clone() if leaves[i].requires_grad else copied(leaves[i])
    with kept_random_state(is_enabled=call.state is not None):
        if call.state is not None:
            call.state.restore()
        outputs = [*map(dense, call_on(function, sample.with_tensors(values))), *(values[i] for i in written)]
    names, rows = result_names(target, sample, len(outputs)), sample.leaves()
    able = {f"gradient of '{target.name_of(rows[i])}'": leaves[i] for i in sorted(call.needs)}
    return Begun(dict(zip(names, outputs, strict=True)), able, call.state is not None)


def run(target: Target, function: Function, call: Call, only: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Return outputs, written inputs and gradients of one call.

    Args:
        target: what the names are taken from.
        function: what is called: the op, its reference, or another kernel.
        call: the call.
        only: the names of the results that cotangents are given for; all by default.
    """
    begun = begin(target, function, call)
    return {**begun.detached(), **begun.backward(cotangents_of(call, begun, only))}


def call_as_given(sample: Sample) -> Call:
    """Return the call in which those tensors need a gradient that require one, with the same random numbers each time.

    Leaves in equal states draw equal numbers, whatever function is called.
    """
    needs = frozenset(i for i, x in enumerate(sample.tensors()) if x.requires_grad)
    return Call(sample, needs, state=RandomState.seeded(0))


def call_of(target: Target, sample: Sample) -> Call:
    """Return the call of a sample in which every tensor needs a gradient that can have one.

    Raises:
        NothingToCheckError: there is none.
    """
    return Call(sample, frozenset(differentiable_positions(target, sample)))


def call_in_double(target: Target, sample: Sample) -> Call:
    """Return the call of a sample in float64, on copies, with the same random numbers each time.

    Raises:
        NothingToCheckError: the op does not take float64, or no output carries a gradient.
    """
    function = function_of(target, sample)
    call = Call(function.sample, frozenset(function.positions), state=function.state)
    require_gradient(begin(target, target.call, call).values.values())
    return call


def differentiate(target: Target, call: Call, between: Callable[[], object] = bool) -> dict[str, Tensor]:
    """Return the outputs that have a gradient, and the gradients.

    Args:
        target: what is called.
        call: the call; dtypes and memory layouts stay, nothing is copied.
        between: is called after the forward and before the backward.

    Raises:
        NothingToCheckError: no output carries a gradient.
    """
    begun = begin(target, target.call, call)
    require_gradient(begun.values.values())
    between()
    return {
        **{name: begun.values[name].detach() for name in begun.able()},
        **begun.backward(cotangents_of(call, begun)),
    }


def run_as_taken(target: Target, sample: Sample) -> dict[str, Tensor] | None:
    """Return copies of values and gradients, or of values if there are no gradients; None if the op refuses a call."""
    able = frozenset(i for i, x in enumerate(sample.tensors()) if can_have_gradient(x) and x.layout == torch.strided)
    for needs in (able, frozenset[int]()):
        with contextlib.suppress(Exception), kept_random_state():
            return kept(run(target, target.call, Call(copy(sample), needs)))
    return None


def draws_gradients(target: Target, sample: Sample) -> bool:
    """Return True if the backward of gradients that are not the derivative on purpose draws random numbers."""
    if not target.surrogates:
        return False
    states: list[RandomState] = []
    with kept_random_state(), contextlib.suppress(Exception):  # derivatives have checks of their own
        differentiate(target, call_of(target, copy(sample)), lambda: states.append(RandomState.current()))
        return states[0].has_moved()
    return False


DRAWN = "its gradient draws random numbers on purpose"


def run_twice(target: Target, call: Call) -> dict[str, Tensor]:
    """Return what `run` does of a plain call.

    Raises:
        NothingToCheckError: the same call gives other results the second time, so that nothing compares with it.
    """
    first = kept(run(target, target.call, call))
    require_same(list(run(target, target.call, call).values()), list(first.values()))
    return first


def run_repeatably(target: Target, call: Call) -> dict[str, Tensor]:
    """Return what `run` does of a plain call that gives the same the second time, to the last bit.

    Raises:
        NothingToCheckError: it does not, so that nothing can be compared.
    """
    first = kept(run(target, target.call, call))
    again = run(target, target.call, call)
    if not all(is_same(value, again[name]) for name, value in first.items()):
        raise NothingToCheckError("two calls in a row with equal seeds give different gradients")
    return first


def find_change(found: Outcome, expected: Outcome) -> Difference | None:
    """Return the first difference between two outcomes, by the names of the second; None if there is none."""
    return find_difference(list(found.values()), list(expected.values()), names=list(expected))


def cotangents_of(call: Call, begun: Begun, only: Sequence[str] | None = None) -> dict[str, Tensor | None]:
    """Return the incoming gradient of each result by name: equal numbers for equal names and shapes.

    Args:
        call: changes them.
        begun: the forward.
        only: the results that have a gradient in the op, of which the reference may know fewer; all by default.

    Raises:
        UnfitError: the change of the call changes none of them, such as one along a dimension that they lack.
    """
    able = begun.able()
    names = able if only is None else only
    made = {name: numbers_like(begun.values[name], name) for name in names if name in able}
    if call.cotangent is None:
        return dict(made)
    found = {name: call.cotangent(made[name], position) for position, name in enumerate(names) if name in made}
    if made and all(found[name] is u for name, u in made.items()):
        raise UnfitError
    return found


def numbers_like(tensor: Tensor, name: str) -> Tensor:
    """Return numbers of both signs that every dtype holds exactly, multiples of 1/16 up to 2; the same for a name.

    None is zero: a gradient of one number would then say nothing.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    steps = [
        torch.randint(-32, 33, tensor.shape, generator=generator, device="cpu") for _ in range(1 + tensor.is_complex())
    ]
    parts = [torch.where(step == 0, 1, step) / 16 for step in steps]
    numbers = torch.complex(*parts) if tensor.is_complex() else parts[0]
    return numbers.to(device=tensor.device, dtype=tensor.dtype)


Plain = Callable[[Target, Function, Call, Sequence[str] | None], Outcome]
"""Computes what a way computes, by the simplest means: a target, a function, a call, and the results it is for."""

OUTPUTS_AND_GRADIENTS: Plain = run


@dataclass(frozen=True, slots=True)
class Way:
    """A way in which a call is made.

    Attributes:
        text: what messages say.
        run: makes the call of a target, and gives outcomes, all of which should be right.
        plain: computes the same for the reference function.
        has_gradients: whether the outcomes have gradients.
        is_derivative: whether they are the derivative, and not what a rule gives in its place.
        cause: what is wrong, probably, where this way alone gives something else.
        is_owed: whether plain functions owe it too: whatever one raises then is a finding.
        oracle: what messages call `plain` where the op itself is called by it.
        draws_alike: whether a call that draws random numbers draws the same in this way.
    """

    text: str
    run: Callable[[Target, Call], Iterator[Outcome]]
    plain: Plain = OUTPUTS_AND_GRADIENTS
    has_gradients: bool = True
    is_derivative: bool = False
    cause: str = ""
    is_owed: bool = False
    oracle: str = "a plain call"
    draws_alike: bool = True

    def raised(self, target: Target, call: Call) -> Exception | None:
        """Return what a call raises, in whatever words; None if it comes to its end."""
        try:
            for _ in self.run(target, call):
                pass
        except Exception as error:  # noqa: BLE001 - what it means depends on the target
            return error
        return None


class WrongError(Exception):
    """Raised by a way that sees something wrong that is no number.

    Args:
        text: what is wrong.
        cause: why, probably.
    """

    def __init__(self, text: str, cause: str = "") -> None:
        super().__init__(text)
        self.cause = cause


class UnfitError(Exception):
    """Raised by a way in which a call cannot be made; its text is the reason, or empty."""


def put_back(target: Target, call: Call, before: Sequence[Tensor]) -> list[int]:
    """Return which inputs were written to although the op does not declare it; they are as before afterwards."""
    declared, found = target.written_positions(call.sample), []
    for i, (x, kept_copy) in enumerate(zip(call.sample.tensors(), before, strict=True)):
        if i not in declared and x.layout == torch.strided and not is_same(x, kept_copy):
            found.append(i)
            if 0 not in x.stride():  # then it is a copy
                x.detach().copy_(kept_copy)
    return found
