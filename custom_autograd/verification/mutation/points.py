"""The functions of an op that can be changed: its gradient rules, its jvp and its kernels.

by name       rules of a custom_op: the incoming gradients are known by their names, the rest is what was saved
after ctx     what torch.library.register_autograd and torch.autograd.Function take: (ctx, *incoming)
arguments     kernels: called like the op itself
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import torch

from custom_autograd.registration import registry
from custom_autograd.registration.capability import attach_all
from custom_autograd.registration.kernel import Kernel
from custom_autograd.registration.registry import OpRecord, find_record
from custom_autograd.registration.rule_types import META, NEEDS, DropInRule, GradientRule, JvpRule, special_names
from custom_autograd.torch_private import definitions, verification
from custom_autograd.verification.harness.packages import all_subclasses
from custom_autograd.verification.harness.targets import target_of

Function: TypeAlias = Callable[..., Any]
"""A user's rule or kernel (Any: of any signature)."""

PointRule: TypeAlias = GradientRule | DropInRule | JvpRule
Kind: TypeAlias = Literal["backward", "jvp", "kernel"]
Style: TypeAlias = Literal["by name", "after ctx", "arguments"]


@dataclass(frozen=True, slots=True)
class MutationPoint:
    """One function of an op that can be changed.

    Args:
        op: the op's name.
        rule: what the function is registered as: "backward", "grad x", "jvp", "kernel cpu".
        kind: what it returns: gradients, tangents or outputs.
        style: how it is called.
        function: the function itself.
        results: the names of what it returns, in order, as far as they are known.
        put: replaces it by another function, or by itself again.
        names: its parameters, where it is called by name.
        incoming: those among them that are incoming gradients or tangents.
    """

    op: str
    rule: str
    kind: Kind
    style: Style
    function: Function
    results: tuple[str, ...]
    put: Callable[[Function], None]
    names: tuple[str, ...] = ()
    incoming: frozenset[str] = frozenset()

    @property
    def saved(self) -> tuple[str, ...]:
        """Return the names of what was saved for it, where it is called by name."""
        return tuple(name for name in self.names if name not in self.incoming and name not in (NEEDS, META))

    @contextlib.contextmanager
    def exchange(self, function: Function) -> Iterator[None]:
        """Put another function in its place for a while."""
        self.put(function)
        try:
            yield
        finally:
            self.put(self.function)

    def is_incoming(self, key: int | str) -> bool:
        """Return True if an argument, by its position or its keyword, is an incoming gradient or tangent."""
        if self.style == "after ctx":
            return key != 0
        return self.style == "by name" and self._name(key) in self.incoming

    def is_saved(self, key: int | str) -> bool:
        """Return True if an argument, by its position or its keyword, is what was saved."""
        return self.style == "by name" and self._name(key) in self.saved

    def _name(self, key: int | str) -> str:
        if isinstance(key, str):
            return key
        return self.names[key] if key < len(self.names) else ""


def points_of(value: object) -> tuple[MutationPoint, ...]:
    """Return every function of an op that can be changed; none where a target is a plain callable or an overload.

    Args:
        value: an op of custom_op or torch.library.custom_op, or a torch.autograd.Function subclass.
    """
    record = registry.record_of(value)
    if record is not None:
        return (*_rules_of(record), *(_kernel_of(record, kernel) for kernel in record.kernels.all()))
    if isinstance(value, verification.Definition):
        return tuple(_of_definition(value))
    if isinstance(value, type) and issubclass(value, torch.autograd.Function):
        return tuple(_of_function(value))
    return ()


def find_points(op: str) -> tuple[MutationPoint, ...]:
    """Return the mutation points of the op of that name in this process; none if it is not declared (yet).

    Args:
        op: "namespace::name", or the qualified name of a torch.autograd.Function subclass.
    """
    found = find_record(op) or definitions.find_definition(op)
    if found is not None:
        return points_of(found)
    classes = [cls for cls in all_subclasses(torch.autograd.Function) if cls.__qualname__ == op]
    return tuple(point for cls in classes for point in points_of(cls))


def _rules_of(record: OpRecord) -> Iterator[MutationPoint]:
    registered = record.registrations
    for rule in registered.all_of(GradientRule):
        results = rule.inputs or tuple(argument.name for argument in record.declaration.schema.differentiable_arguments)
        yield _named_rule(record, rule, rule.title, "backward", results)
    for drop_in in registered.all_of(DropInRule):
        results = tuple(record.declaration.schema.argument_names)
        yield MutationPoint(
            record.name, "backward", "backward", "after ctx", drop_in.function, results, _exchange(record, drop_in)
        )
    for jvp in registered.all_of(JvpRule):
        results = tuple(result.name for result in record.declaration.schema.differentiable_results)
        yield _named_rule(record, jvp, "jvp", "jvp", results)


def _named_rule(
    record: OpRecord, rule: GradientRule | JvpRule, title: str, kind: Kind, results: tuple[str, ...]
) -> MutationPoint:
    is_jvp = kind == "jvp"
    special = special_names(record.declaration.schema, with_grads=not is_jvp, with_tangents=is_jvp)
    incoming = frozenset(rule.names) & (set(special) - {NEEDS, META})
    put = _exchange(record, rule)
    return MutationPoint(record.name, title, kind, "by name", rule.function, results, put, rule.names, incoming)


def _exchange(record: OpRecord, rule: PointRule) -> Callable[[Function], None]:
    def put(function: Function) -> None:
        _set_rule(record, rule if function is rule.function else replace(rule, function=function))

    return put


def _set_rule(record: OpRecord, rule: PointRule) -> None:
    with record.lock:
        record.registrations = record.registrations.with_(rule)
        record.forget()
        attach_all(record)


def _kernel_of(record: OpRecord, kernel: Kernel) -> MutationPoint:
    def put(function: Function) -> None:
        other = replace(kernel, function=kernel.wrap(function), given=function)
        record.kernels.add(kernel if function is kernel.given else other, replace=True)

    results = tuple(output.name for output in record.declaration.schema.fresh_outputs)
    title = f"kernel {kernel.title}"
    return MutationPoint(record.name, title, "kernel", "arguments", kernel.given, results, put)


def _of_definition(definition: verification.Definition) -> Iterator[MutationPoint]:
    target = target_of(definition)
    names = tuple(argument.name for argument in target.arguments)
    backward = definitions.backward_of(definition)
    if backward is not None:
        put = partial(definitions.set_backward, definition)
        yield MutationPoint(target.name, "backward", "backward", "after ctx", backward, names, put)
    table = definitions.kernels_of(definition)
    for device, kernel in table.items():
        title, put = f"kernel {device or 'default'}", partial(table.__setitem__, device)
        yield MutationPoint(target.name, title, "kernel", "arguments", kernel, (), put)


def _of_function(cls: type[torch.autograd.Function]) -> Iterator[MutationPoint]:
    target = target_of(cls)
    names = tuple(argument.name for argument in target.arguments)
    for attribute, rule, kind in METHODS:
        if getattr(cls, attribute) is not getattr(torch.autograd.Function, attribute):
            style: Style = "arguments" if attribute == "forward" else "after ctx"
            results = names if kind == "backward" else ()
            found = getattr(cls, attribute)
            put = _exchange_method(cls, attribute, found)
            yield MutationPoint(target.name, rule, kind, style, found, results, put)


def _exchange_method(cls: type, attribute: str, found: Function) -> Callable[[Function], None]:
    before, is_own = inspect.getattr_static(cls, attribute), attribute in vars(cls)

    def put(function: Function) -> None:
        if function is not found or is_own:
            setattr(cls, attribute, before if function is found else staticmethod(function))
        else:
            delattr(cls, attribute)

    return put


METHODS: tuple[tuple[str, str, Kind], ...] = (
    ("backward", "backward", "backward"),
    ("vjp", "backward", "backward"),
    ("jvp", "jvp", "jvp"),
    ("forward", "kernel forward", "kernel"),
)
"""Of a torch.autograd.Function: attribute, what reports call it, and what it returns."""
