"""Looks at one case of a sample: makes the call that it stands for, and says whether it is right."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from custom_autograd.core.errors import CustomAutogradError, GradientError, KernelError, KernelUnavailable, ShapeError
from custom_autograd.kernels.numpy import Unsuitable
from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import RandomState, kept_random_state
from custom_autograd.verification.calls import layouts
from custom_autograd.verification.calls.backward_ways import PLAIN
from custom_autograd.verification.calls.call import (
    DRAWN,
    Call,
    Outcome,
    UnfitError,
    WrongError,
    begin,
    differentiate,
    draws_gradients,
    kept,
    leaves_of,
    put_back,
    run,
)
from custom_autograd.verification.calls.case import (
    DRAWS,
    LOST,
    OVERFLOW,
    REFUSED,
    SPECIAL,
    UNFIT,
    UNKNOWN,
    Case,
    Verdict,
)
from custom_autograd.verification.calls.changes import (
    COTANGENTS,
    LAYOUTS,
    NEEDS,
    OUT_OF_RANGE,
    SCALARS,
    SHARED,
    SIZES,
    VALUES,
    Change,
    changes_of,
)
from custom_autograd.verification.calls.directions import find_false_direction
from custom_autograd.verification.calls.drawing import OF_FAKES, rows_of
from custom_autograd.verification.calls.judge import (
    NEAR,
    Fault,
    Judge,
    find_fault,
    is_finite_part_same,
    is_of,
    results_of,
)
from custom_autograd.verification.calls.numbers import NOT_FINITE
from custom_autograd.verification.calls.sizes import LONG
from custom_autograd.verification.harness.agreement import (
    CRASHES,
    TO_SAY,
    UNMET,
    declared_outputs,
    is_within_domain,
    only_a_kernel_refuses,
    to_double,
    values_of,
)
from custom_autograd.verification.harness.base import NothingToCheckError, find_refusal, first_line
from custom_autograd.verification.harness.differentiable import able_positions, differentiable_positions
from custom_autograd.verification.harness.pace import Pace
from custom_autograd.verification.harness.settings import is_random
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.harness.tracing import find_false_fake

OF_NO_KERNEL = (KernelUnavailable, ShapeError)
"""Errors of a call that no kernel is meant to take."""


@dataclass(slots=True)
class Looker:
    """Looks at cases of one sample.

    Args:
        target: what is verified.
        sample: what changes change.
        told: the checks that looked at this sample and found nothing, whose cases are not made again.
        is_plain: whether a plain call of the op itself is the reference, and not its reference.
        state: where random numbers begin in each call; None for an op that draws none.
        is_thorough: whether the fake kernel, and gradients that no reference knows, are looked at too.
        is_of_gradients: whether gradients alone are compared, at kinks too: there the choice of the reference counts.
        is_of_values: whether no gradients are computed.
        lost: the cases, by their texts, that end the process; they are left out.
        tell: is given the texts of each case before it is looked at.
    """

    target: Target
    sample: Sample
    told: frozenset[str] = frozenset()
    is_plain: bool = False
    state: RandomState | None = None
    is_thorough: bool = True
    is_of_gradients: bool = False
    is_of_values: bool = False
    lost: Collection[tuple[str, ...]] = ()
    tell: Callable[[tuple[str, ...]], object] = tuple
    judge: Judge = field(init=False)
    start: Call = field(init=False)
    _known: frozenset[int] = field(init=False, default=frozenset())
    _is_drawn: bool = field(init=False, default=False)
    _pace: Pace = field(init=False)
    _able: dict[object, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Prepare the call that draws change."""
        self.judge = Judge(self.target, is_plain=self.is_plain, is_fixed=self.is_of_gradients)
        needs = frozenset(able_positions(self.target, self.sample))
        self._is_drawn = draws_gradients(self.target, self.sample)
        if self.is_of_values or self._is_drawn or any(x.layout != torch.strided for x in self.sample.tensors()):
            needs = frozenset()  # what a dense cotangent of a sparse result is, each op decides
        plain = Call(self.sample.map(lambda x: x.detach().clone()), needs, state=self.state)
        is_own_reference = not (self.is_plain or self.judge.has_reference)
        self.start = self._in_double(plain) if is_own_reference else self._without_refused_gradients(plain)
        before = [x.clone() for x in self.start.sample.tensors()]
        PLAIN.raised(self.target, self.start)
        self._known = frozenset(put_back(self.target, self.start, before))  # which the check schema tells, and no other
        self._pace = Pace(self.target, self.start.sample)

    def _in_double(self, call: Call) -> Call:
        """Return the call in float64, so that nothing is rounded; as it is, or without gradients, if the op says so."""
        wide = call.map(to_double)
        if not self._refuses(wide):
            return wide
        others = (call, *map(self._without_refused_gradients, (wide, call)))
        return next((other for other in others if not self._refuses(other)), wide)

    def _without_refused_gradients(self, call: Call) -> Call:
        error = PLAIN.raised(self.target, call.map(lambda x: x.detach().clone()))
        return call if error is None or find_refusal(error) is None else replace(call, needs=frozenset())

    def require_gradients(self) -> None:
        """Run forward and backward; whatever they raise leaves.

        Raises:
            NothingToCheckError: no output carries a gradient, or it is drawn on purpose.
        """
        if self._is_drawn:
            raise NothingToCheckError(DRAWN)
        needs = frozenset(differentiable_positions(self.target, self.sample))
        differentiate(self.target, replace(self.start, needs=needs).map(lambda x: x.detach().clone()))

    def changes(self) -> list[Change]:
        """Return every single change of the sample."""
        found = changes_of(self.target, self.sample, self.start.needs)
        return [change for change in found if self.judge.has_reference or not change.is_of_dtype]

    def is_told(self, case: Case) -> bool:
        """Return True if other checks have looked at the values and gradients of a call."""
        return bool(rows := rows_of(case)) and rows <= self.told

    def look(self, case: Case) -> Verdict:
        """Return whether one case is right."""
        if case.texts in self.lost:
            return Verdict(case, reason=LOST)
        self.tell(case.texts)
        call = self.call_of(case)
        if call is None or self._is_unfit(case, call):
            return Verdict(case, reason=UNFIT)
        is_same_numbers = all(change.stage in (LAYOUTS, NEEDS, COTANGENTS) for change in case.changes)
        if not is_same_numbers and not is_within_domain(self.target, self.sample, call.sample):
            return Verdict(case, reason=REFUSED)
        counted = [change for change in case.changes if change.stage != LAYOUTS or layouts.EXPANDED in change.text]
        numbers = tuple(change.text for change in counted if change.stage <= LAYOUTS), frozenset[int]()
        key = (tuple(change.text for change in counted), call.needs) if call.needs else numbers
        is_long = any(change.stage == SCALARS and change.text.endswith(f"={LONG}") for change in case.changes)
        too_long = self._pace.why_not(call.sample) or (self._pace.why_not_times(LONG, call.sample) if is_long else None)
        if too_long or not self._is_known(case, call, numbers):
            return Verdict(case, reason=too_long or UNKNOWN)
        before = [x.detach().clone() for x in call.sample.tensors()]
        given = replace(call, sample=call.sample.with_tensors(before))
        fault = said = None
        try:
            with kept_random_state():
                fault = self._judged(case, call, given, key) or self._untrue(case, call, key)
        except WrongError as reason:
            said = Fault("", str(reason), cause=reason.cause)
        except UnfitError as reason:
            return Verdict(case, reason=str(reason) or UNFIT)
        except Exception as error:  # noqa: BLE001 - distinguished there
            fault = self._raised(case, call, error)
            if fault is None:
                is_picky = not isinstance(error, OF_NO_KERNEL) and only_a_kernel_refuses(self.target, call.sample)
                to_say = TO_SAY if is_picky else ""
                return Verdict(case, reason=f"{REFUSED} ({first_line(error)}){to_say}")
        written = [position for position in put_back(self.target, call, before) if position not in self._known]
        if written and said is None:
            name = self.target.name_of(call.sample.leaves()[written[0]])
            return Verdict(case, Fault(name, f"the op writes to '{name}', which it does not declare"))
        return self._verdict(case, call, said or fault)

    def _verdict(self, case: Case, call: Call, found: Fault | None) -> Verdict:
        """Return the verdict on a case; none if only this case draws random numbers, as with training=True."""
        is_drawing = False
        if found is not None and call.state is None:
            with contextlib.suppress(Exception):  # what raises draws nothing
                is_drawing = is_random(self.target, call.sample)
        return Verdict(case, reason=DRAWS) if is_drawing else Verdict(case, found)

    def _judged(self, case: Case, call: Call, given: Call, key: object) -> Fault | None:
        """Return what is wrong with the outcomes of a call that the op may write to; whatever it raises leaves."""
        fault = None if self.is_told(case) else self._compared(case, call, given, key)
        if fault is not None and len(case.changes) > 1 and (reason := self._extreme(case, given, fault, key)):
            raise UnfitError(reason)
        return fault

    def _compared(self, case: Case, call: Call, given: Call, key: object) -> Fault | None:
        has_gradients = bool(call.needs) and case.way.has_gradients
        is_exact = not any(change.is_of_dtype for change in case.changes)
        find = partial(
            find_fault, is_exact=is_exact, least=case.least, slack=case.slack, is_rounded=case.is_of_large_numbers
        )
        is_whole = bool(call.needs) and call.shared is None and case.way.plain is run
        whole = replace(given, needs=self.start.needs) if is_whole else given
        for outcome in case.way.run(self.target, call):
            seen, fault = self._comparable(kept(outcome)), None
            only: Sequence[str] | None = None
            if not self.is_of_gradients:
                only = self._able_of(case, call, key, results_of(outcome)) if has_gradients else []
            for depth in case.depths:
                truth = self.judge.truth(whole, case.way.plain, only, key, depth=depth)
                fault = None if truth is None else find(seen, truth)
                if fault is None:
                    break
            if fault is not None:
                return fault
        return None

    def _extreme(self, case: Case, given: Call, fault: Fault, key: object) -> str | None:
        """Return why extreme numbers are no fault: they are right in a wider dtype, or only nan or inf differ."""
        if fault.found is None or fault.expected is None:
            return None
        is_special = any(change.text.endswith(NOT_FINITE) for change in case.changes)
        if is_special and is_finite_part_same(fault.found, fault.expected):
            return SPECIAL
        with contextlib.suppress(Exception):  # what it refuses proves nothing
            if not bool(fault.found.isfinite().all()):
                wide = given.map(to_double)
                return OVERFLOW if self._compared(case, wide, wide, (key, "wide")) is None else None
        return None

    def _untrue(self, case: Case, call: Call, key: object) -> Fault | None:
        """Return what else is wrong with a plain call: its fake, or, where no reference knows, its gradients."""
        stages = {change.stage for change in case.changes}
        is_known = not any(change.is_of_dtype or change.key == "shapes" for change in case.changes)
        if not (self.is_thorough and case.way is PLAIN and is_known):
            return None  # calls that the author may not have thought of: values only
        if not stages and self.sample.accepted:
            return None  # the sample itself has checks of its own, which may have failed as expected
        text = find_false_fake(self.target, call.sample) if stages <= OF_FAKES else None
        is_far = any(change.key.startswith("numbers") for change in case.changes)  # steps may be too large there
        is_blind = not self.judge.has_reference and bool(call.needs) and not is_far
        is_changed = not stages or bool(stages & {SIZES, VALUES, SCALARS})  # else the sample itself tells
        if text is None and is_blind and is_changed and self._is_steady(call, key):
            text = find_false_direction(self.target, call.sample.with_tensors(leaves_of(call.plain())))
        return None if text is None else Fault("", text)

    def _is_steady(self, call: Call, key: object) -> bool:
        """Return False if the results of a call are so ill conditioned that finite differences prove nothing."""
        truth = self.judge.truth(replace(call, needs=frozenset()), run, (), key)
        return truth is not None and all(expected.is_steady for expected in truth.values())

    def _is_unfit(self, case: Case, call: Call) -> bool:
        """Return True if random numbers are others, a derivative is meant to be none, or tensors have other places."""
        meant = (self.target.surrogates, self.target.reference_surrogate, self.target.tangent_surrogate)
        is_other_draw = self.state is not None and not case.draws_alike
        is_by_place = case.way is not PLAIN or any(change.stage in (SHARED, LAYOUTS) for change in case.changes)
        is_moved = call.same is not None and is_by_place
        return is_other_draw or is_moved or (case.way.is_derivative and any(meant))

    def _is_known(self, case: Case, call: Call, key: object) -> bool:
        """Return False if a reference raises, or gives no number where no sample has such inputs."""
        if not any(change.key == OUT_OF_RANGE for change in case.changes):
            return self.judge.takes(call, key)
        truth = self.judge.truth(replace(call, needs=frozenset()), run, (), key, depth=NEAR)
        return truth is not None and all(bool(expected.value.isfinite().all()) for expected in truth.values())

    def _comparable(self, outcome: Outcome) -> Outcome:
        """Return what the truth is right about: not gradients that are meant to be something else."""
        if self.is_of_gradients:
            return {name: y for name, y in outcome.items() if name not in results_of(outcome)}
        if not self.judge.has_reference:
            return outcome
        meant = [f"gradient of '{name}" for name in self.target.surrogates]
        return {name: y for name, y in outcome.items() if not any(is_of(name, one) for one in meant)}

    def _able_of(self, case: Case, call: Call, key: object, names: Sequence[str]) -> list[str]:
        """Return which results of the op have a gradient: equal results for equal scalars have one alike."""
        scalars = tuple(change.text for change in case.changes if change.stage == SCALARS)
        known = (scalars, call.needs, *names) if names else key
        if known not in self._able:
            copies = call.map(lambda x: x.detach().clone())  # the op may write to them while the way goes on
            self._able[known] = begin(self.target, self.target.call, copies).able()
        return self._able[known]

    def _raised(self, case: Case, call: Call, error: Exception) -> Fault | None:
        """Return what an exception means: nothing where an op may refuse, or where the reference raises as well."""
        if find_refusal(error) is not None or isinstance(error, OF_NO_KERNEL):
            return None
        if isinstance(error.__cause__, Unsuitable):  # NumPy has no such dtype
            return None
        is_owed = all(change.is_owed for change in case.changes)
        is_crash = self._is_crash(case, call, error)
        may_refuse = any(change.key in ("shapes", "dtype of one") for change in case.changes)
        is_ours = isinstance(error, (GradientError, KernelError)) and not may_refuse
        if not (is_owed or is_crash or is_ours) or self._is_of_numbers(case, call):
            return None
        if self._is_excused(case, call):
            return None
        by_whom = ", where the reference gives a result" if self.judge.has_reference else ""
        who = "the op" if case.way is not PLAIN or self._refuses_forward(call) else "the backward"
        cause = (error.do or "") if isinstance(error, CustomAutogradError) else UNMET if is_crash else ""
        return Fault("", f"{who} raises {first_line(error)}{by_whom}", cause=cause)

    def _is_crash(self, case: Case, call: Call, error: Exception) -> bool:
        """Return True if an exception is a crash: by its class, for empty tensors, or in a backward of another size."""
        is_foreseen = all(change.is_owed or change.is_foreseen for change in case.changes)
        is_of_class, is_empty = isinstance(error, CRASHES), any(x.numel() == 0 for x in call.sample.tensors())
        if self.judge.has_reference and is_foreseen and (is_of_class or is_empty):
            return True
        is_sized = all(change.is_owed or change.key.startswith("size") for change in case.changes)
        is_due = is_foreseen and (is_sized if self.judge.has_reference else is_of_class)
        return is_due and case.way is PLAIN and not self._refuses_forward(call)

    def _is_excused(self, case: Case, call: Call) -> bool:
        """Return True if an op may raise here: in a way or a layout, or where the reference raises too."""
        if self.target.is_composed and case.way is not PLAIN and not case.way.is_owed:
            return True
        if any(change.stage == LAYOUTS for change in case.changes) and self._refuses_forward(call):
            return True
        if self.target.visible_reference is None:
            if case.way is PLAIN:
                return False
            known = self.judge.truth(call, case.way.plain, (), (case.texts, call.needs))
            return known is None or self.look(replace(case, way=PLAIN)).fault is not None
        if self._lacks_outputs(call):
            return True
        oracle = replace(self.target, call=self.target.visible_reference)
        error = case.way.raised(oracle, call)  # then this way is not for this computation
        return error is not None and not isinstance(error, WrongError)  # which looks for the op itself

    def _is_of_numbers(self, case: Case, call: Call) -> bool:
        """Return True if no change is to blame: every op owes a result for it, and this one raises without it too."""
        if not case.changes or case.way is not PLAIN or not all(change.is_owed for change in case.changes):
            return False
        return PLAIN.raised(self.target, call.plain()) is not None

    def _lacks_outputs(self, call: Call) -> bool:
        """Return True if the reference returns another number of outputs than the op declares."""
        assert self.target.reference is not None
        declared = declared_outputs(self.target)
        results = values_of(self.target, self.target.reference, call.sample)
        return declared not in (None, len(results) - len(self.target.written_positions(call.sample)))

    def _refuses_forward(self, call: Call) -> bool:
        return self._refuses(replace(call, needs=frozenset()))

    def _refuses(self, call: Call) -> bool:
        with kept_random_state():
            return PLAIN.raised(self.target, call) is not None  # in whatever words

    def call_of(self, case: Case) -> Call | None:
        """Return the call of a case; None where a change does not fit."""
        call: Call | None = self.start
        for change in sorted(case.changes, key=lambda change: change.stage):
            call = None if call is None else change.apply(call)
        if call is not None and not all(change.has_gradients for change in case.changes):
            call = replace(call, needs=frozenset())
        return call
