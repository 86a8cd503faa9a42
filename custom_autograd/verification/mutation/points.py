"""The functions of an op that can be changed: its gradient rules, its jvp and its kernels.

by name       rules of a custom_op: the incoming gradients are known by their names, the rest is what was saved
after ctx     what torch.library.register_autograd and torch.autograd.Function take: (ctx, *incoming)
arguments     kernels: called like the op itself
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
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
        exchange: a context in which another function replaces it.
        names: its parameters, where it is called by name.
        incoming: those among them that are incoming gradients or tangents.
    """

    op: str
    rule: str
    kind: Kind
    style: Style
    function: Function
    results: tuple[str, ...]
    exchange: Callable[[Function], AbstractContextManager[None]]
    names: tuple[str, ...] = ()
    incoming: frozenset[str] = frozenset()

    @property
    def saved(self) -> tuple[str, ...]:
        """Return the names of what was saved for it, where it is called by name."""
        return tuple(name for name in self.names if name not in self.incoming and name not in (NEEDS, META))

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
        return (*_rules_of(record), *_kernels_of(record))
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
    classes = [cls for cls in _subclasses(torch.autograd.Function) if cls.__qualname__ == op]
    return tuple(point for cls in classes for point in points_of(cls))


def _subclasses(cls: type) -> Iterator[type]:
    children: list[type] = cls.__subclasses__()
    for one in children:
        yield one
        yield from _subclasses(one)


def _rules_of(record: OpRecord) -> Iterator[MutationPoint]:
    registered = record.registrations
    for rule in registered.all_of(GradientRule):
        yield _gradient_of(record, rule)
    for drop_in in registered.all_of(DropInRule):
        yield _drop_in_of(record, drop_in)
    for jvp in registered.all_of(JvpRule):
        yield _jvp_of(record, jvp)


def _gradient_of(record: OpRecord, rule: GradientRule) -> MutationPoint:
    schema = record.declaration.schema
    special = set(special_names(schema, with_grads=True, with_tangents=False)) - {NEEDS, META}
    return MutationPoint(
        record.name,
        rule.title,
        "backward",
        "by name",
        rule.function,
        rule.inputs or tuple(argument.name for argument in schema.differentiable_arguments),
        partial(_exchanged_rule, record, rule),
        rule.names,
        frozenset(rule.names) & special,
    )


def _drop_in_of(record: OpRecord, rule: DropInRule) -> MutationPoint:
    return MutationPoint(
        record.name,
        "backward",
        "backward",
        "after ctx",
        rule.function,
        tuple(record.declaration.schema.argument_names),
        partial(_exchanged_rule, record, rule),
    )


def _jvp_of(record: OpRecord, rule: JvpRule) -> MutationPoint:
    schema = record.declaration.schema
    special = set(special_names(schema, with_grads=False, with_tangents=True)) - {NEEDS, META}
    return MutationPoint(
        record.name,
        "jvp",
        "jvp",
        "by name",
        rule.function,
        tuple(result.name for result in schema.differentiable_results),
        partial(_exchanged_rule, record, rule),
        rule.names,
        frozenset(rule.names) & special,
    )


def _kernels_of(record: OpRecord) -> Iterator[MutationPoint]:
    results = tuple(output.name for output in record.declaration.schema.fresh_outputs)
    for kernel in record.kernels.all():
        yield MutationPoint(
            record.name,
            f"kernel {kernel.title}",
            "kernel",
            "arguments",
            kernel.given,
            results,
            partial(_exchanged_kernel, record, kernel),
        )


@contextlib.contextmanager
def _exchanged_rule(record: OpRecord, rule: PointRule, function: Function) -> Iterator[None]:
    _set_rule(record, replace(rule, function=function))
    try:
        yield
    finally:
        _set_rule(record, rule)


def _set_rule(record: OpRecord, rule: PointRule) -> None:
    with record.lock:
        record.registrations = record.registrations.with_(rule)
        record.forget()
        attach_all(record)


@contextlib.contextmanager
def _exchanged_kernel(record: OpRecord, kernel: Kernel, function: Function) -> Iterator[None]:
    record.kernels.add(replace(kernel, function=kernel.wrap(function), given=function), replace=True)
    try:
        yield
    finally:
        record.kernels.add(kernel, replace=True)


def _of_definition(definition: verification.Definition) -> Iterator[MutationPoint]:
    target = target_of(definition)
    names = tuple(argument.name for argument in target.arguments)
    backward = definitions.backward_of(definition)
    if backward is not None:
        yield MutationPoint(
            target.name,
            "backward",
            "backward",
            "after ctx",
            backward,
            names,
            partial(_exchanged_backward, definition),
        )
    for device, kernel in definitions.kernels_of(definition).items():
        yield MutationPoint(
            target.name,
            f"kernel {device or 'default'}",
            "kernel",
            "arguments",
            kernel,
            (),
            partial(_exchanged_item, definitions.kernels_of(definition), device),
        )


@contextlib.contextmanager
def _exchanged_backward(definition: verification.Definition, function: Function) -> Iterator[None]:
    before = definitions.backward_of(definition)
    assert before is not None  # there is no mutation point otherwise
    definitions.set_backward(definition, function)
    try:
        yield
    finally:
        definitions.set_backward(definition, before)


@contextlib.contextmanager
def _exchanged_item(table: dict[str | None, Function], key: str | None, function: Function) -> Iterator[None]:
    before = table[key]
    table[key] = function
    try:
        yield
    finally:
        table[key] = before


def _of_function(cls: type[torch.autograd.Function]) -> Iterator[MutationPoint]:
    target = target_of(cls)
    names = tuple(argument.name for argument in target.arguments)
    for attribute, rule, kind in METHODS:
        if getattr(cls, attribute) is getattr(torch.autograd.Function, attribute):
            continue
        is_forward = attribute == "forward"
        yield MutationPoint(
            target.name,
            rule,
            kind,
            "arguments" if is_forward else "after ctx",
            getattr(cls, attribute),
            names if kind == "backward" else (),
            partial(_exchanged_method, cls, attribute),
        )


@contextlib.contextmanager
def _exchanged_method(cls: type, attribute: str, function: Function) -> Iterator[None]:
    before = inspect.getattr_static(cls, attribute)
    is_own = attribute in vars(cls)
    setattr(cls, attribute, staticmethod(function))
    try:
        yield
    finally:
        if is_own:
            setattr(cls, attribute, before)
        else:
            delattr(cls, attribute)


METHODS: tuple[tuple[str, str, Kind], ...] = (
    ("backward", "backward", "backward"),
    ("vjp", "backward", "backward"),
    ("jvp", "jvp", "jvp"),
    ("forward", "kernel forward", "kernel"),
)
"""Of a torch.autograd.Function: attribute, what reports call it, and what it returns."""
