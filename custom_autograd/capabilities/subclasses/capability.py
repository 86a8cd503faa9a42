"""Tensor subclasses and modes: what an op does for them, from `register_torch_dispatch`; and for nested tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from custom_autograd.capabilities.subclasses import nested
from custom_autograd.capabilities.subclasses.refusals import explain
from custom_autograd.registration.capability import Capability
from custom_autograd.registration.one_tuple import enclosed
from custom_autograd.registration.registry import Entry
from custom_autograd.torch_private.dispatch import register_torch_dispatch
from custom_autograd.torch_private.nested import NestedTensor


class Subclasses(Capability):
    """One rule per subclass or mode; all others take the op apart through their own `__torch_dispatch__`."""

    name = "torch_dispatch"

    def attach(self, entry: Entry) -> None:
        """Register each rule, once, and what stands for one for nested tensors."""
        if NestedTensor not in entry.attached:
            over_values = nested.attach(entry, lambda: NestedTensor in entry.registrations.torch_dispatch)
            _register(entry, NestedTensor, _nested_dispatch(entry, over_values))
        for cls in entry.registrations.torch_dispatch:
            if cls not in entry.attached:
                _register(entry, cls, _dispatch(entry, cls))

    def explain(self, entry: Entry, error: Exception, values: Sequence[Any]) -> bool:
        """Add what to do to an error by which a subclass refuses the op."""
        explain(entry, error, values)
        return False

    def describe(self, entry: Entry) -> str:
        """Return the classes that have a rule."""
        classes = [rule.class_name for rule in entry.registrations.torch_dispatch.values()]
        if torch.Tag.pointwise in entry.declaration.tags and NestedTensor not in entry.registrations.torch_dispatch:
            classes.append("jagged tensors (pointwise: over their values)")
        return f"registered: {', '.join(classes)}" if classes else "none: each class's own __torch_dispatch__"


def _register(entry: Entry, cls: type, function: Callable[..., Any]) -> None:
    assert entry.library is not None
    register_torch_dispatch(entry.library, entry.home.qualifier, cls, function)
    entry.attached.add(cls)


def _dispatch(entry: Entry, cls: type) -> Callable[..., Any]:
    def dispatch(
        *args: Any, **kwargs: Any
    ) -> Any:  # Any: (mode or class, func, types, args, kwargs), as torch passes it
        return entry.registrations.torch_dispatch[cls].function(*args, **kwargs)

    return dispatch


def _nested_dispatch(entry: Entry, over_values: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule for jagged tensors below autograd, which inference mode goes to at once."""
    over_all = enclosed(entry.declaration.schema, over_values)

    def dispatch(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: as above
        rule = entry.registrations.torch_dispatch.get(NestedTensor)
        if rule is not None:
            return rule.function(cls, func, types, args, kwargs)
        return over_all(*args, **(kwargs or {}))

    return dispatch
