"""Another rule, or another value that it reads, is never served from a compile cache.

AOTAutograd and FX graph caches know the graph, in which an op is a name: what its rules did to it is in the cached
result only. Each rule is changed here, and so is each value that it reads; the op's fingerprint, which is in the key,
has to change with it.
"""

import copy
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from custom_autograd.capabilities.autocast import AutocastRule
from custom_autograd.capabilities.compile_cache import fingerprint, read_rules
from custom_autograd.core.locations import unwrap
from custom_autograd.core.read_values import IN_THE_OBJECT, is_plain
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import Registration, Rule
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.base import PASSED, Check, Finding, failed, skipped
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.targets import Target

CHANGE = "changed by the check cache"


class Cache(Check):
    """The fingerprint of the op, against those of the op with one thing changed."""

    name = "cache"
    code = "C09"
    group = "compiler"
    is_quick = True
    most_samples = 1
    purpose = "a change of a rule, or of a value that it reads, changes the key of compile caches"

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless it is an op of this package; torch's caches know others by name or version only."""
        if record_of(target) is not None:
            return None
        if target.overload is None:
            return "torch.compile traces through it, so that the graph itself is in the key of compile caches"
        return "the fingerprint in the key of compile caches is of ops declared with custom_op only"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per rule, and per value that a rule reads."""
        del sample
        record = record_of(target)
        if record is None or not record.registrations.all():
            yield skipped("no rule is registered")
            return
        reader = read_rules(record)
        before = reader.number()
        if reader.unread:
            text = f"a rule reads what cannot be a part of the key of compile caches: {', '.join(reader.unread)}"
            yield failed(text, cause="they never hit in another process")
        for rule in record.registrations.all():
            for what, changed in _changed(rule):
                is_seen = fingerprint(_replaced(record, changed)) != before
                yield PASSED if is_seen else _unseen(rule, what)


def _replaced(record: OpRecord, rule: Registration) -> OpRecord:
    """Return a copy of what is known of an op with one rule replaced; nothing is registered."""
    changed = copy.copy(record)
    changed.registrations = record.registrations.with_(rule)
    return changed


def _unseen(rule: Registration, what: str) -> Finding:
    text = (
        f"the rule '{rule.title}' ({rule.location}) depends on {what}, whose change is not in the key of compile caches"
    )
    return failed(text, cause="a graph that was compiled before the change is served after it")


def _changed(rule: Registration) -> Iterator[tuple[str, Registration]]:
    """Yield what a rule depends on, in words, each with the rule in which that is another."""
    if isinstance(rule, AutocastRule):
        yield "its policy", replace(rule, policy=replace(rule.policy, text=CHANGE))
    elif isinstance(rule, Rule):
        for what, function in _changes(rule.function):
            yield what, replace(rule, function=function)
    else:
        changed: dict[str, Any] = {rule.kind: CHANGE}  # data are in a field with the name of the kind (Any: as there)
        yield f"its {rule.kind}", replace(rule, **changed)


def _changes(function: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any]]]:  # Any: a user's function
    """Yield what a function depends on, in words, each with a function in which that is another."""
    plain = unwrap(function)
    if not isinstance(plain, types.FunctionType):  # written in C++: torch's version, which is in the key, says which
        return
    code = plain.__code__
    yield "its source", _rebuilt(plain, code=code.replace(co_consts=(*code.co_consts, CHANGE)))
    for position, (name, cell) in enumerate(zip(code.co_freevars, plain.__closure__ or (), strict=True)):
        for what, value in _other_values(name, cell.cell_contents, code.co_names):
            cells = [types.CellType(value) if i == position else old for i, old in enumerate(plain.__closure__ or ())]
            yield what, _rebuilt(plain, closure=tuple(cells))
    for name in code.co_names:
        if name in plain.__globals__:
            for what, value in _other_values(name, plain.__globals__[name], code.co_names):
                yield what, _rebuilt(plain, scope={**plain.__globals__, name: value})


def _other_values(name: str, value: object, read: Iterable[str]) -> Iterator[tuple[str, object]]:
    """Yield another value for a name: a number, text or container of such, or an object with such attributes."""
    if is_plain(value):
        yield f"'{name}', {_shown(value)}", [value, CHANGE]
    elif not isinstance(value, (type, types.ModuleType)) and not callable(value):
        own = getattr(value, "__dict__", {})
        for attribute in read:
            is_own = attribute in own or isinstance(getattr(type(value), attribute, None), IN_THE_OBJECT)
            old = getattr(value, attribute, None) if is_own else None
            if old is None or not is_plain(old):
                continue
            other = old + 1 if isinstance(old, (int, float)) else [old, CHANGE]
            try:
                setattr(changed := copy.copy(value), attribute, other)
            except Exception:  # noqa: BLE001 - it cannot be copied, or the attribute not be set
                continue
            yield f"'{name}.{attribute}', {_shown(old)}", changed


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _rebuilt(
    function: types.FunctionType,
    *,
    code: types.CodeType | None = None,
    closure: tuple[types.CellType, ...] | None = None,
    scope: dict[str, object] | None = None,
) -> types.FunctionType:
    """Return the function with one part replaced."""
    made = types.FunctionType(
        code or function.__code__,
        function.__globals__ if scope is None else scope,
        function.__name__,
        function.__defaults__,
        function.__closure__ if closure is None else closure,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__module__ = function.__module__
    return made
