"""A call and its backward leave the process as it was: default dtype, grad mode, threads, flags and random numbers."""

from collections.abc import Callable, Iterable, Mapping, Set

import torch

from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import RandomState
from custom_autograd.verification.calls.call import call_of, differentiate
from custom_autograd.verification.harness import settings
from custom_autograd.verification.harness.agreement import values_of
from custom_autograd.verification.harness.base import PASSED, Check, Finding, failed
from custom_autograd.verification.harness.settings import move_on, outside_torch
from custom_autograd.verification.harness.targets import Target


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
    if not target.surrogates:  # a surrogate may be drawn
        yield _judge_randomness(before, states[0], RandomState.current())
    yield _run_elsewhere(call, what)


def _judge_randomness(before: RandomState, between: RandomState, after: RandomState) -> Finding:
    """Fail a backward that draws random numbers if its forward does not: it changes what is drawn next."""
    if before.moved(between) or not between.moved(after):
        return PASSED
    return failed("the backward draws random numbers, or seeds them, and the forward does not", cause="a stray seed")


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
    return _misplaced(what, changed[0]) if changed else PASSED


def _misplaced(what: str, owner: str) -> Finding:
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
