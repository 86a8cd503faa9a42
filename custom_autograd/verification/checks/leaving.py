"""Equal calls give equal results and leave the process as it was, and rules for derivatives only compute.

Random numbers are declared and come from torch, and nothing is remembered. Settings and random numbers are read before
and after a call and its backward. Compiled code runs a rule once, while it is traced, so that a side effect happens
once instead of in every backward. Each rule runs twice with the same arguments: what the second run changes is a side
effect, and what only the first does is a cache, which is not looked at.
"""

import contextlib
import itertools
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from custom_autograd.capabilities.vmap import VmapRule
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import quote
from custom_autograd.registration.rule_types import JvpRule, Rule
from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.verification import rules_of_definition
from custom_autograd.values.random_state import RandomState, kept_random_state
from custom_autograd.verification.calls.call import (
    Call,
    Outcome,
    begin,
    call_of,
    differentiate,
    find_change,
    kept,
)
from custom_autograd.verification.calls.call_arguments import scalars, with_value
from custom_autograd.verification.calls.numbers import casts
from custom_autograd.verification.harness import settings
from custom_autograd.verification.harness.agreement import values_of
from custom_autograd.verification.harness.base import PASSED, Check, Finding, NothingToCheckError, failed
from custom_autograd.verification.harness.comparison import find_difference, judged
from custom_autograd.verification.harness.differentiable import (
    function_of,
    push_forward,
    signed_like,
    vector_jacobian,
)
from custom_autograd.verification.harness.dispatching import has_generator
from custom_autograd.verification.harness.reached_state import changes_in, state_of
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.settings import draws, move_on, outside_torch
from custom_autograd.verification.harness.sweeps import copy, has_arithmetic
from custom_autograd.verification.harness.targets import Target, call_on

ROUNDS = 3


class Determinism(Check):
    """The same call repeated, after another call in between, with grad mode on, off and in inference mode."""

    name = "determinism"
    code = "F05"
    group = "values"
    is_quick = True
    purpose = "equal calls give equal results, in every grad mode; random numbers are declared"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding for randomness, one for memory of earlier calls, one for grad modes."""
        state = RandomState.current()
        first = _call_in(target, sample, state)
        is_drawing = state.has_moved()
        is_given = has_generator(sample)
        is_declared = target.overload is None or torch.Tag.nondeterministic_seeded in target.overload.tags
        text = "" if is_drawing or is_declared else _find_drawing(target, sample)
        if text or (is_drawing and (is_given or not is_declared)):
            yield failed(f"{text}{OF_TORCH if is_given else UNDECLARED}")
        for _ in range(ROUNDS):
            difference = find_change(_call_in(target, sample, state), first)
            if difference is not None:
                cause = "it is not deterministic, or it remembers a call"
                yield failed(f"two equal calls differ: {difference}", cause=cause)
                return
        if not is_drawing and find_change(_call_in(target, sample, RandomState.seeded(ROUNDS)), first) is not None:
            text = "its results depend on torch's seed, but it draws nothing: each call gives them again"
            yield failed(text, cause=SEED)
        yield PASSED
        yield _after_another_call(target, sample, state, first)
        yield _gradients(target, sample)
        yield from _grad_modes(target, sample, state, first)


OF_TORCH = "it draws from torch's own generator, although it is given one"

UNDECLARED = (
    "it draws random numbers, which its schema does not say: a compiler may drop or merge its calls; "
    "declare it with tags=torch.Tag.nondeterministic_seeded"
)


SEED = "a generator is made of torch.initial_seed(): make it of torch.randint(2**62, ()).item(), which moves on"


def _find_drawing(target: Target, sample: Sample) -> str:
    """Return the dtype, the scalar or the flag with which alone a call draws random numbers; empty if none does."""
    others = scalars(target, sample)
    numbers = ((f"{name}={other!r}", with_value(target, sample, name, other)) for name, other in others)
    dtypes = ((text, cast(sample)) for _, text, cast in casts(sample))
    for text, variant in itertools.chain(numbers, dtypes):
        with contextlib.suppress(Exception):  # what it refuses draws nothing
            if variant is not None and draws(target, variant):
                return f"{text}: "
    return ""


def _call_in(
    target: Target,
    sample: Sample,
    state: RandomState,
    mode: Callable[[], contextlib.AbstractContextManager[None]] = torch.no_grad,
) -> Outcome:
    """Return the values, with every generator in the same state; torch's is given, Python's is reset."""
    state.restore()
    random.seed(0)
    with mode():
        return begin(target, target.full, Call(sample, frozenset())).detached()


def _after_another_call(target: Target, sample: Sample, state: RandomState, first: Outcome) -> Finding:
    other = sample.map(lambda x: x.detach() * 0.5 if has_arithmetic(x) else x)
    before = kept(first)
    _call_in(target, other, state)
    difference = find_change(first, before)
    if difference is not None:
        return failed(f"a later call changes the result of an earlier one: {difference}", cause="a buffer is reused")
    difference = find_change(_call_in(target, sample, state), first)
    return judged(difference, "it differs after a call with other values: {}", cause="it remembers earlier calls")


def _gradients(target: Target, sample: Sample) -> Finding:
    """Compare two runs of forward and backward."""
    try:
        function = function_of(target, sample)
        cotangents = signed_like(function(*function.inputs))
        with kept_random_state():
            first = vector_jacobian(function, function.inputs, cotangents)
    except (NothingToCheckError, RuntimeError, TypeError):  # derivatives have checks of their own
        return PASSED
    names = [f"gradient of '{name}'" for name in function.names]
    for _ in range(ROUNDS):
        with kept_random_state(is_enabled=bool(target.surrogates)):  # which may be drawn
            found = vector_jacobian(function, function.inputs, cotangents)
        difference = find_difference(found, first, names=names)
        if difference is not None:
            cause = "the backward is not deterministic, or it remembers earlier ones"
            return failed(f"two equal backwards differ: {difference}", cause=cause)
    return PASSED


def _grad_modes(target: Target, sample: Sample, state: RandomState, first: Outcome) -> Iterable[Finding]:
    for label, mode in (("grad mode is on", torch.enable_grad), ("inference mode is on", torch.inference_mode)):
        difference = find_change(_call_in(target, sample, state, mode), first)
        yield judged(difference, f"where {label}: {{}} without it", cause="it computes something else in that mode")


class ProcessState(Check):
    """Settings of the process before and after a call; what was changed is put back after it is reported.

    A setting that earlier calls have left changed already is set to another value first, so that the call changes it
    again.
    """

    name = "process_state"
    code = "Y04"
    group = "system"
    is_quick = True
    most_samples = 2
    purpose = "a call and its backward leave default dtype, grad mode, threads, flags and random numbers as they were"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield findings for the call, and for forward and backward: as things are, and with other settings."""
        with torch.no_grad():
            devices = {torch.device("cpu"), *(tensor.device for tensor in sample.tensors())}
            found = _look_at_call(lambda: values_of(target, target.full, sample), devices)
        yield from found
        yield from _look_at_backward(target, sample)


def _look_at_call(call: Callable[[], object], devices: Set[torch.device]) -> list[Finding]:
    found = [_run(call, "a call")]
    if found[0].status == "failed":
        return found
    before = RandomState.current()
    devices = devices & before.devices
    move_on(devices)  # a call that draws goes on from here; one that seeds does not
    call()  # not with other settings: in another default dtype, more is drawn after equal seeds
    is_seeded = not devices <= before.moved(RandomState.current())
    found.append(_run_elsewhere(call, "a call"))
    if is_seeded:
        cause = "torch.manual_seed in a kernel; a generator that is seeded belongs to the kernel, or is an argument"
        found.append(failed("a call seeds torch's random numbers: every call leaves them in one state", cause=cause))
    return found


def _look_at_backward(target: Target, sample: Sample) -> Iterable[Finding]:
    states: list[RandomState] = []

    def call() -> None:
        differentiate(target, call_of(target, sample), lambda: states.append(RandomState.current()))

    before, what = RandomState.current(), "forward and backward"
    try:
        finding = _run(call, what)
    except Exception:  # noqa: BLE001 - derivatives have checks of their own
        return
    yield finding
    if finding.status == "failed":
        return
    if not target.surrogates:  # a surrogate may be drawn; anything else changes what is drawn next
        is_drawn = not before.moved(states[0]) and states[0].moved(RandomState.current())
        text = "the backward draws random numbers, or seeds them, and the forward does not"
        yield failed(text, cause="a stray seed") if is_drawn else PASSED
    yield _run_elsewhere(call, what)


def _run(call: Callable[[], object], what: str) -> Finding:
    """Compare the settings and generators after a call with those before; settings are put back."""
    with settings.kept():
        before, generators = settings.read(), outside_torch()
        call()
        after, moved = settings.read(), outside_torch()
    finding = _compare(what, before, after)
    if finding.status == "failed":
        return finding
    changed = [owner for owner, state in generators.items() if moved[owner] != state]
    if not changed:
        return PASSED
    owner = changed[0]
    text = f"{what}: the global random numbers of {owner}, which torch.manual_seed does not reach, are drawn or seeded"
    return failed(text, cause="draw from torch's generator, and declare it with tags=torch.Tag.nondeterministic_seeded")


def _run_elsewhere(call: Callable[[], object], what: str) -> Finding:
    """Compare as `_run` does, with other settings: all at once, or, if the op does not take them, one by one."""
    before = settings.read()
    for names in ((), *((name,) for name in before)):
        try:
            with settings.perturbed(before, names) as values:
                call()
                after = settings.read()
        except Exception:  # noqa: BLE001 - an op may need a setting as it is
            continue
        finding = _compare(f"{what} that finds other settings", values, after)
        if finding.status == "failed" or not names:
            return finding
    return PASSED


def _compare(what: str, before: Mapping[str, object], after: Mapping[str, object]) -> Finding:
    changed = [name for name in before if name in after and after[name] != before[name]]
    if not changed:
        return PASSED
    rows = [f"{name} is {after[name]}, and was {before[name]}" for name in changed]
    return failed(f"{what}: the process is left changed: {'; '.join(rows)}", cause="it is set and not put back")


CAUSE = "compiled code runs a rule once, while it is traced"
ADVICE = "return what is computed; count or record in a hook of a tensor, outside of compiled code"
CALLBACKS = ("queue_callback", "on_backward_end")

Run: TypeAlias = Callable[[Target, Sample], object]
"""Runs a rule, with the same arguments each time."""


@dataclass(frozen=True, slots=True)
class Watched:
    """One rule.

    Args:
        title: what a message calls it, with file and line.
        functions: those of its author.
        run: runs them.
    """

    title: str
    functions: Sequence[Callable[..., Any]]  # Any: of any signature
    run: Run


class SideEffects(Check):
    """What rules reach, before and after the second of two equal runs; and calls of `queue_callback`."""

    name = "side_effects"
    code = "C10"
    group = "compiler"
    is_quick = True
    most_samples = 1
    purpose = "no rule for a derivative changes what is outside of it: compiled code runs rules once, while tracing"

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless it is an op whose rules are known."""
        if record_of(target) is not None or rules_of_definition(target.subject):
            return None
        if target.overload is None:
            return "torch.compile traces through it, and refuses side effects that it cannot keep"
        return "its rules for derivatives, if it has any, are not known"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding for each rule that runs on the sample."""
        rules = list(_rules_of(target))
        if not rules:
            raise NothingToCheckError("no rule for a derivative is registered")
        found = [_look(rule, target, sample) for rule in rules]
        if not any(found):
            raise NothingToCheckError("no rule for a derivative runs on the sample")
        yield from (finding for finding in found if finding is not None)


def _rules_of(target: Target) -> Iterator[Watched]:
    record = record_of(target)
    if record is None:
        for title, function in rules_of_definition(target.subject).items():
            run: Run = _batch if title == "vmap rule" else _differentiate
            yield Watched(f"the {title} ({location_of(function)})", [function], run)
        return
    registered = record.registrations
    rows: list[tuple[Rule | None, Run]] = [(rule, _differentiate) for rule in registered.gradient_rules()]
    for rule, run in [*rows, (registered.get(JvpRule), _push), (registered.get(VmapRule), _batch)]:
        if rule is not None:
            yield Watched(f"the {rule.title} ({rule.location})", rule.functions, run)


def _look(rule: Watched, target: Target, sample: Sample) -> Finding | None:
    """Run a rule twice, and look at what the second run changes; None if it does not run on the sample."""
    try:
        _run_rule(rule, target, sample)
        before = state_of(rule.functions)
        with _callbacks() as called:
            _run_rule(rule, target, sample)
    except Exception:  # noqa: BLE001 - what the rule raises is a finding of the checks of its results
        return None
    changed = changes_in(before, state_of(rule.functions))
    if changed:
        of_forward = _changed_by_forward(rule, target, sample)  # a kernel may count its own calls
        changed = [name for name in changed if name not in of_forward]
    if changed:
        return failed(f"{rule.title} changes {quote(changed)}, also when it runs again", cause=f"{CAUSE}: {ADVICE}")
    if called:
        text = f"{rule.title} asks for a callback at the end of the backward, by {called[0]}"
        return failed(text, cause=f"{CAUSE}: call custom_autograd.on_backward_end in a hook of a tensor instead")
    return PASSED


def _changed_by_forward(rule: Watched, target: Target, sample: Sample) -> list[str]:
    before = state_of(rule.functions)
    with kept_random_state(), torch.no_grad():
        call_on(target.call, copy(sample))
    return changes_in(before, state_of(rule.functions))


def _run_rule(rule: Watched, target: Target, sample: Sample) -> None:
    with kept_random_state():
        rule.run(target, copy(sample))


def _differentiate(target: Target, sample: Sample) -> object:
    return differentiate(target, call_of(target, sample))


def _push(target: Target, sample: Sample) -> object:
    function = function_of(target, sample)
    return push_forward(function, [torch.ones_like(tensor) for tensor in function.inputs])


def _batch(target: Target, sample: Sample) -> object:
    def call(*tensors: Tensor) -> Any:  # Any: what the op returns
        return call_on(target.call, sample.with_tensors(tensors))

    return torch.vmap(call)(*(torch.stack([tensor, tensor]) for tensor in sample.map(Tensor.detach).tensors()))


@contextlib.contextmanager
def _callbacks() -> Iterator[list[str]]:
    """Yield the list of the functions that are called within to queue a callback."""
    called: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:  # Any: of a call into C, the function
        if event in ("call", "c_call"):
            name = frame.f_code.co_name if event == "call" else getattr(argument, "__name__", "")
            if name in CALLBACKS:
                called.append(name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(before)
