"""What checks compare with and run on: the reference, which also serves as what is not registered, and the samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from custom_autograd.core.locations import location_of
from custom_autograd.pytrees.op_adapter import adapter_of
from custom_autograd.registration.called_by_position import check_signature
from custom_autograd.registration.capability import add
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import Reference, Samples
from custom_autograd.registration.rules import check_surrogate

F = TypeVar("F", bound=Callable[..., Any])


def register(record: OpRecord, function: F, *, surrogate: str | None, replace: bool) -> F:
    """Register the op in differentiable PyTorch operations."""
    registered = adapter_of(record.declaration).accepting(Reference.kind, function)
    check_surrogate(record.declaration, function, surrogate)
    add(record, Reference(location_of(registered), registered, surrogate), replace=replace)
    return function


def register_samples(record: OpRecord, function: F, *, replace: bool) -> F:
    """Register a generator of samples."""
    check_signature(record.declaration, "generator of samples", function, ["make"])
    record.add(Samples(location_of(function), function), replace=replace)
    return function
