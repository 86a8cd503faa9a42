"""Rules for derivatives only compute: nothing outside of them is changed when they run.

Compiled code runs a rule once, while it is traced, so that a side effect happens once instead of in every backward.
Each rule runs twice with the same arguments: what the second run changes is a side effect, and what only the first
does is a cache, which is not looked at.
"""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from custom_autograd.values.random_state import kept_random_state
from custom_autograd.verification.calls.call import call_of, differentiate
from custom_autograd.verification.harness.base import PASSED, Check, Finding, NothingToCheckError, failed
from custom_autograd.verification.harness.differentiable import function_of, push_forward
from custom_autograd.verification.harness.reached_state import changes_in, state_of
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.sweeps import copy
from custom_autograd.verification.harness.targets import Target, call_on

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
        _run(rule, target, sample)
        before = state_of(rule.functions)
        with _callbacks() as called:
            _run(rule, target, sample)
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


def _run(rule: Watched, target: Target, sample: Sample) -> None:
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
