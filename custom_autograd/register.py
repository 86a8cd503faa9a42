"""Registers rules and kernels: checks what can be checked at once, and attaches what they need."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from custom_autograd.calls.kernel_options import Terms, make_kernel
from custom_autograd.capabilities import CAPABILITIES
from custom_autograd.capabilities.autocast.policies import parse_policy
from custom_autograd.core.errors import RegistrationError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import quote, show, suggest
from custom_autograd.core.names import names_of
from custom_autograd.dispatch import attaching as autograd_kernel
from custom_autograd.pytrees.op_adapter import adapter_of
from custom_autograd.registration import rules
from custom_autograd.registration.registry import Entry
from custom_autograd.registration.rule_types import (
    AnyRegistration,
    Autocast,
    Backward,
    DropIn,
    Effect,
    Fake,
    Gradient,
    Reference,
    Samples,
    TorchDispatch,
    Vmap,
)
from custom_autograd.registration.shorter_rules import take_all
from custom_autograd.torch_private.definitions import is_of_profile
from custom_autograd.torch_private.dispatch import key_of_device

F = TypeVar("F", bound=Callable[..., Any])


def attach_capabilities(entry: Entry) -> None:
    """Let every subsystem of PyTorch see what is registered for an op now."""
    entry.capabilities = CAPABILITIES
    for capability in CAPABILITIES:
        capability.attach(entry)


def _add(entry: Entry, new: AnyRegistration, *, replace: bool) -> None:
    """Register a rule or a policy, and let every subsystem see the change."""
    with entry.lock:
        entry.add(new, replace=replace)
        attach_capabilities(entry)


def add_kernel(
    entry: Entry, device_types: str | Sequence[str] | None, function: F, terms: Terms, *, replace: bool
) -> F:
    """Register a kernel for each device type."""
    declaration = entry.declaration
    registered = adapter_of(declaration).kernel(function)
    for device_type in (None,) if device_types is None else names_of(device_types):
        rules.check_call(declaration, f"{device_type or 'default'} kernel", registered)
        kernel = make_kernel(declaration, device_type, registered, location_of(function), terms)
        if device_type is None:
            entry.kernels.add(kernel, replace=replace)
            continue
        _check_device(entry, device_type, function)
        with entry.lock:
            entry.kernels.add(kernel, replace=replace)
            autograd_kernel.attach_device(entry, device_type)
    return function


def _check_device(entry: Entry, device_type: str, function: Callable[..., Any]) -> None:
    try:
        key_of_device(device_type)
        torch.device(device_type)
    except RuntimeError as error:
        raise entry.declaration.origin(location_of(function)).error(
            RegistrationError,
            f"torch knows no device type {device_type!r}",
            expected="'cpu', 'cuda', 'mps', 'xpu', ...",
            found=repr(device_type),
        ) from error
    schema = entry.declaration.schema
    if not schema.tensor_arguments and not schema.device_arguments:
        raise entry.declaration.origin(location_of(function)).error(
            RegistrationError,
            "an op without tensors cannot choose between devices",
            expected="an argument 'device: torch.device'",
            do="add one, or declare the op with device_types=None",
        )


def add_fake(entry: Entry, function: F, *, replace: bool) -> F:
    """Register what the op returns, without data."""
    given = adapter_of(entry.declaration).parameters()
    registered = _flat(entry, Fake.kind, take_all(entry.declaration, Fake.kind, function, given))
    fake = Fake(location_of(registered), registered)
    _add(entry, fake, replace=replace or _is_for_a_while(entry.registrations.fake, fake))
    return function


def add_reference(entry: Entry, function: F, *, replace: bool) -> F:
    """Register the op in differentiable PyTorch operations."""
    registered = _flat(entry, Reference.kind, function)
    _add(entry, Reference(location_of(registered), registered), replace=replace)
    return function


def _flat(entry: Entry, title: str, function: Callable[..., Any]) -> Callable[..., Any]:  # Any: what the schema says
    """Return a function that is called like the op, with flat arguments, once it is known to accept them."""
    flat = adapter_of(entry.declaration).by_position(title, function)
    rules.check_call(entry.declaration, title, flat)
    return flat


def _is_for_a_while(old: Fake | None, new: Fake) -> bool:
    """Return True if torch.export puts a fake of its own in the place of one, or puts that one back."""
    return old is not None and (is_of_profile(old.function) or is_of_profile(new.function))


def check_inputs(entry: Entry, inputs: Sequence[str]) -> None:
    """Check names given to `register_grad`."""
    valid = adapter_of(entry.declaration).differentiable_names()
    if not inputs or not all(isinstance(name, str) for name in inputs):
        raise entry.declaration.origin().error(
            RegistrationError,
            "register_grad takes names of inputs",
            expected=quote(valid),
            found=", ".join(show(name) if isinstance(name, str) else type(name).__name__ for name in inputs) or "none",
            do=f"write @op.register_grad({show(next(iter(valid), 'x'))})",
        )
    for name in inputs:
        if name not in valid:
            raise entry.declaration.origin().error(
                RegistrationError,
                f"register_grad names {name!r}, which is not a differentiable input",
                expected=quote(valid),
                found=repr(name),
                do=suggest(name, valid),
            )


def add_backward(entry: Entry, function: F, *, once_differentiable: bool, materialize_grads: bool, replace: bool) -> F:
    """Register the gradients of all inputs, bound by name."""
    registered, _ = adapter_of(entry.declaration).gradient_rule(Backward.kind, function, ())
    rule = rules.bind_backward(
        entry.declaration, registered, once_differentiable=once_differentiable, materialize_grads=materialize_grads
    )
    _add(entry, rule, replace=replace)
    return function


def add_gradient(
    entry: Entry,
    named: tuple[str, ...],
    function: F,
    *,
    once_differentiable: bool,
    materialize_grads: bool,
    replace: bool,
) -> F:
    """Register the gradients of some inputs, bound by name."""
    title = Gradient.title_of(named)
    registered, inputs = adapter_of(entry.declaration).gradient_rule(title, function, named)
    rule = rules.bind_gradient(
        entry.declaration,
        registered,
        named,
        inputs,
        once_differentiable=once_differentiable,
        materialize_grads=materialize_grads,
    )
    _add(entry, rule, replace=replace)
    return function


def add_jvp(entry: Entry, function: F, *, replace: bool) -> F:
    """Register a forward-mode rule bound by name."""
    registered = adapter_of(entry.declaration).jvp_rule(function)
    _add(entry, rules.bind_jvp(entry.declaration, registered), replace=replace)
    return function


def add_drop_in(
    entry: Entry, backward: Callable[..., Any], setup_context: Callable[..., Any] | None, *, replace: bool
) -> None:
    """Register a backward and a setup_context as `torch.library` takes them."""
    schema = entry.declaration.schema
    if schema.mutated_arguments:
        raise entry.declaration.origin(location_of(backward)).error(
            RegistrationError,
            "register_autograd cannot express an op that mutates",
            do="use register_backward: there, grad_<input> is the gradient after the call",
        )
    adapter = adapter_of(entry.declaration)
    expected = ["ctx", *(f"grad_{name}" for name in adapter.output_names())]
    rules.check_signature(entry.declaration, "backward", backward, expected)
    backward, setup_context = adapter.drop_in(backward, setup_context)
    takes_keywords, by_keyword = (False, False) if setup_context is None else _setup_style(entry, setup_context)
    rule = DropIn(location_of(backward), backward, setup_context, takes_keywords, by_keyword)
    _add(entry, rule, replace=replace)


def _setup_style(entry: Entry, setup_context: Callable[..., Any]) -> tuple[bool, bool]:
    """Return whether a setup_context has a parameter for keyword-only inputs, and whether it is called by keyword.

    Torch calls it by keyword, and people name its parameters as they like.
    """
    names = list(inspect.signature(setup_context).parameters)
    is_catch_all = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(setup_context).parameters.values())
    has_keywords = any(argument.is_keyword_only for argument in entry.declaration.schema.arguments)
    takes_keywords = has_keywords and ("keyword_only_inputs" in names or is_catch_all)
    by_keyword = is_catch_all or {"ctx", "inputs", "output"} <= set(names)
    keywords = ["ctx", "inputs", "output"] + (["keyword_only_inputs"] if takes_keywords else [])
    rules.check_signature(
        entry.declaration,
        "setup_context",
        setup_context,
        [] if by_keyword else keywords,
        keywords if by_keyword else [],
    )
    return takes_keywords, by_keyword


def add_vmap(entry: Entry, function: F, *, replace: bool) -> F:
    """Register a batching rule."""
    schema, adapter = entry.declaration.schema, adapter_of(entry.declaration)
    registered = take_all(entry.declaration, "vmap rule", function, adapter.parameters(), ["info", "in_dims"])
    registered = adapter.vmap_rule(registered)
    positional = ["info", "in_dims", *rules.positional_of(schema)]
    rules.check_signature(entry.declaration, "vmap rule", registered, positional, rules.keywords_of(schema))
    _add(entry, Vmap(location_of(function), registered), replace=replace)
    return function


def add_autocast(entry: Entry, device_type: str, inputs: Any, output: Any, *, replace: bool) -> None:
    """Register an autocast policy (Any: what the author wrote; see `parse_policy`)."""
    adapter = adapter_of(entry.declaration)
    policy = parse_policy(entry.declaration, device_type, adapter.by_name(inputs), adapter.by_name(output))
    location = f"register_autocast({device_type!r}, {policy.text})"
    _add(entry, Autocast(location, policy), replace=replace)


def add_effect(entry: Entry, effect: Any) -> None:  # Any: torch's EffectType, which has no public name, or None
    """Register an effect, in the place of the one before."""
    _add(entry, Effect(f"register_effect({effect})", effect), replace=True)


def add_torch_dispatch(entry: Entry, cls: type, function: F, *, replace: bool) -> F:
    """Register what the op does for a subclass or a mode."""
    if not isinstance(cls, type):
        raise entry.declaration.origin(location_of(function)).error(
            RegistrationError, "register_torch_dispatch takes a class", found=show(cls)
        )
    rules.check_signature(
        entry.declaration, "torch_dispatch rule", function, ["cls", "func", "types", "args", "kwargs"]
    )
    _add(entry, TorchDispatch(location_of(function), function, cls), replace=replace)
    return function


def add_samples(entry: Entry, function: F, *, replace: bool) -> F:
    """Register a generator of samples."""
    rules.check_signature(entry.declaration, "generator of samples", function, ["make"])
    entry.add(Samples(location_of(function), function), replace=replace)
    return function
