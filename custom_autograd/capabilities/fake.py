"""Fake kernels: what an op returns, without data. For `torch.compile`, export and FakeTensorMode."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from custom_autograd.calls.bind import Binder
from custom_autograd.core.errors import FakeUnavailable, KernelError
from custom_autograd.dispatch.call import make_ready
from custom_autograd.registration import rule_types
from custom_autograd.registration.capability import Capability, registered
from custom_autograd.registration.one_tuple import enclosed
from custom_autograd.registration.registry import Entry
from custom_autograd.values.results import ResultReader
from custom_autograd.values.tensors import tensors_in
from custom_autograd.values.user_code import noted

NO_FAKE = "no fake is registered"
"""Ends the refusal of an op that has none; Dynamo keeps the text of it, and not the class."""


class Fake(Capability):
    """The registered fake, else the reference, else (for ops without new outputs) nothing to do."""

    name = "fake"

    def attach(self, entry: Entry) -> None:
        """Register a fake, once, that looks up which rule to run when it is called."""
        if self.name in entry.attached:
            return
        bind = Binder(entry.declaration.schema)
        reader = ResultReader(entry.declaration, str)

        def fake(*args: Any, **kwargs: Any) -> Any:  # Any: fake tensors and other values, as the schema says
            if not entry.is_traced:
                entry.is_traced = True
                for capability in entry.capabilities:
                    capability.before_trace(entry)
            if entry.uncalled:
                make_ready(entry)
            rule = _find_rule(entry)
            arguments = bind.arguments(*args, **kwargs)
            if rule is None:
                _check_has_no_data(entry, "no fake is needed", None, arguments)
                return reader.read(None, arguments, "fake")
            positional, keywords = bind.user_call(arguments)
            result = noted(entry.name, rule)(*positional, **keywords)
            found = reader.read(result, arguments, f"fake, {rule.location},")
            _check_has_no_data(entry, f"{rule.location}, fake", found, arguments)
            return found

        torch.library.register_fake(str(entry.home), enclosed(entry.declaration.schema, fake), lib=entry.library)
        if entry.output is not None:
            torch.library.register_fake(entry.output.name(), fake, lib=entry.library)
        entry.attached.add(self.name)

    def describe(self, entry: Entry) -> str:
        """Return where shapes come from."""
        found = registered(entry.registrations.fake)
        if found is not None:
            return found
        if entry.reference() is not None:
            return "derived from the reference"
        return "derived: the op returns nothing new" if _returns_nothing_new(entry) else "missing: register_fake"


def _check_has_no_data(entry: Entry, rule: str, found: Any, arguments: dict[str, Any]) -> None:
    """Refuse memory that nobody has written to: from a call with tensors on "meta" and others that are not.

    Any: results and arguments of any type.
    """
    written = [arguments[argument.name] for argument in entry.declaration.schema.mutated_arguments]
    tensors = tensors_in([found, *written])
    if not any(type(tensor) is Tensor and not tensor.is_meta for tensor in tensors):
        return
    devices = {name: tensor.device for name, value in arguments.items() for tensor in tensors_in([value])}
    raise KernelError(
        entry.name,
        "the op meets tensors on 'meta', which have no data, together with tensors that have",
        expected="all tensors on one device",
        found=", ".join(f"'{name}' on {str(device)!r}" for name, device in devices.items()),
        rule=rule,
        declared=entry.declaration.location,
        do="move them to one device; a fake makes its outputs on the device of an input",
    )


def _find_rule(entry: Entry) -> rule_types.Fake | None:
    rule = entry.registrations.fake
    if rule is not None:
        return rule
    reference = entry.reference()
    if reference is not None:
        named = entry.registrations.reference
        return rule_types.Fake(entry.declaration.location if named is None else named.location, reference)
    if _returns_nothing_new(entry):
        return None
    raise FakeUnavailable(
        entry.name,
        f"the op meets fake tensors, and {NO_FAKE}",
        declared=entry.declaration.location,
        do="register_fake a function that returns empty tensors of the right shape, dtype and device; "
        "torch.compile, export and meta tensors need it",
    )


def _returns_nothing_new(entry: Entry) -> bool:
    return not entry.declaration.schema.fresh_outputs
