"""Definitions: what torch.library.custom_op makes, and what torch.library looks ops up in (found in torch 2.13).

CustomOpDef                    the class that torch.library's functions accept, without a public name for type checkers
CustomOpDef._backward_fn       the backward of register_autograd; the node looks it up whenever it runs
CustomOpDef._backend_fns       the kernels by device type, None for the default one; looked up at every call
custom_ops.OPDEFS              every definition by name: torch.library.register_*("ns::op", ...) registers with it
Library._register_effectful_op what CustomOpDef.register_effect calls
effects.EffectType             what it takes, besides None
simple_registry.singleton      the fake of each op, and where it was written: torch's messages and tools show it;
                               torch.library.register_fake reads source files to find that out
Library._registration_handles  what the library withdraws with itself, such as the fake of an op
fake_profile                   torch.export puts fakes of its own in place of the registered ones for a while
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch._library.custom_ops import OPDEFS, CustomOpDef
from torch._library.effects import EffectType
from torch._library.simple_registry import singleton

EFFECTS = tuple(EffectType)


class OwnDefinition(CustomOpDef):
    """Base of our ops. The constructor of torch's class registers with the dispatcher, so it is not called."""

    def __init__(self) -> None:
        """Register nothing."""


def register_fake(library: torch.library.Library, name: str, function: Callable[..., Any], location: str) -> None:
    """Register a fake for an op of a library, which withdraws it (Any: the function takes what the op does).

    Args:
        library: in which the op is defined.
        name: of the op in the dispatcher.
        function: the fake.
        location: where torch is to say that it was written.
    """
    library._registration_handles.append(singleton.find(name).fake_impl.register(function, location, lib=library))


def name_source_of_fake(name: str, location: str) -> None:
    """Let torch say where the fake of an op was written."""
    kernel = singleton.find(name).fake_impl.kernel
    if kernel is not None:
        kernel.source = location


def is_foreign(value: object) -> TypeGuard[CustomOpDef]:
    """Return True for a definition that torch.library.custom_op made."""
    return isinstance(value, CustomOpDef) and not isinstance(value, OwnDefinition)


def publish(name: str, definition: OwnDefinition) -> None:
    """Make torch.library find an op under a name of the dispatcher; the caller keeps the op alive."""
    OPDEFS[name] = definition


def withdraw(name: str) -> None:
    """Undo `publish`."""
    if isinstance(OPDEFS.get(name), OwnDefinition):
        OPDEFS.pop(name, None)


def register_effect(library: torch.library.Library, name: str, effect: Any) -> None:
    """Register how compilers order an op among others; None for one that may move (Any: it has no public type)."""
    library._register_effectful_op(name, effect)


def is_of_profile(function: Callable[..., Any]) -> bool:
    """Return True for a fake that torch.export puts in place of the registered one, and takes back later."""
    return getattr(function, "__module__", None) == "torch._library.fake_profile"


def find_definition(name: str) -> CustomOpDef | None:
    """Return the definition of that qualified name that torch.library.custom_op made, or None."""
    found = OPDEFS.get(name)
    return found if is_foreign(found) else None


def names_of_definitions() -> frozenset[str]:
    """Return the qualified names of every definition of this process that torch.library.custom_op made."""
    return frozenset(name for name, found in list(OPDEFS.items()) if is_foreign(found))


def backward_of(definition: CustomOpDef) -> Callable[..., Any] | None:  # Any: a user's function
    """Return what was given to register_autograd, or None."""
    backward: Callable[..., Any] | None = definition._backward_fn
    return backward


def set_backward(definition: CustomOpDef, function: Callable[..., Any]) -> None:
    """Replace the backward by another function."""
    definition._backward_fn = function


def kernels_of(definition: CustomOpDef) -> dict[str | None, Callable[..., Any]]:
    """Return the kernels by device type; what is put into this dict is what runs."""
    kernels: dict[str | None, Callable[..., Any]] = definition._backend_fns
    return kernels
