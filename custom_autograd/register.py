"""Registers rules and kernels: checks what can be checked at once, and attaches what they need."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from custom_autograd.calls.kernel_options import KernelOptions, make_kernel
from custom_autograd.capabilities import CAPABILITIES
from custom_autograd.capabilities.autocast.policies import parse_policy
from custom_autograd.core.errors import RegistrationError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import quote, show, suggest
from custom_autograd.core.names import names_of
from custom_autograd.dispatch import attaching as autograd_kernel
from custom_autograd.pytrees.op_adapter import adapter_of
from custom_autograd.registration import rules
from custom_autograd.registration.registry import OpRecord
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


def attach_capabilities(record: OpRecord) -> None:
    """Let every subsystem of PyTorch see what is registered for an op now."""
    record.capabilities = CAPABILITIES
    for capability in CAPABILITIES:
        capability.attach(record)


def _add(record: OpRecord, new: AnyRegistration, *, replace: bool) -> None:
    """Register a rule or a policy, and let every subsystem see the change."""
    with record.lock:
        record.add(new, replace=replace)
        attach_capabilities(record)


def add_kernel(
    record: OpRecord, device_types: str | Sequence[str] | None, function: F, options: KernelOptions, *, replace: bool
) -> F:
    """Register a kernel for each device type."""
    declaration = record.declaration
    registered = adapter_of(declaration).kernel(function)
    for device_type in (None,) if device_types is None else names_of(device_types):
        rules.check_call(declaration, f"{device_type or 'default'} kernel", registered)
        kernel = make_kernel(declaration, device_type, registered, location_of(function), options)
        if device_type is None:
            record.kernels.add(kernel, replace=replace)
            continue
        _check_device(record, device_type, function)
        with record.lock:
            record.kernels.add(kernel, replace=replace)
            autograd_kernel.attach_device(record, device_type)
    return function


def _check_device(record: OpRecord, device_type: str, function: Callable[..., Any]) -> None:
    try:
        key_of_device(device_type)
        torch.device(device_type)
    except RuntimeError as error:
        raise record.declaration.origin(location_of(function)).error(
            RegistrationError,
            f"torch knows no device type {device_type!r}",
            expected="'cpu', 'cuda', 'mps', 'xpu', ...",
            found=repr(device_type),
        ) from error
    schema = record.declaration.schema
    if not schema.tensor_arguments and not schema.device_arguments:
        raise record.declaration.origin(location_of(function)).error(
            RegistrationError,
            "an op without tensors cannot choose between devices",
            expected="an argument 'device: torch.device'",
            do="add one, or declare the op with device_types=None",
        )


def add_fake(record: OpRecord, function: F, *, replace: bool) -> F:
    """Register what the op returns, without data."""
    given = adapter_of(record.declaration).parameters()
    registered = _flat(record, Fake.kind, take_all(record.declaration, Fake.kind, function, given))
    fake = Fake(location_of(registered), registered)
    _add(record, fake, replace=replace or _is_for_a_while(record.registrations.fake, fake))
    return function


def add_reference(record: OpRecord, function: F, *, replace: bool) -> F:
    """Register the op in differentiable PyTorch operations."""
    registered = _flat(record, Reference.kind, function)
    _add(record, Reference(location_of(registered), registered), replace=replace)
    return function


def _flat(
    record: OpRecord, title: str, function: Callable[..., Any]
) -> Callable[..., Any]:  # Any: what the schema says
    """Return a function that is called like the op, with flat arguments, once it is known to accept them."""
    flat = adapter_of(record.declaration).by_position(title, function)
    rules.check_call(record.declaration, title, flat)
    return flat


def _is_for_a_while(old: Fake | None, new: Fake) -> bool:
    """Return True if torch.export puts a fake of its own in the place of one, or puts that one back."""
    return old is not None and (is_of_profile(old.function) or is_of_profile(new.function))


def check_inputs(record: OpRecord, inputs: Sequence[str]) -> None:
    """Check names given to `register_grad`."""
    valid = adapter_of(record.declaration).differentiable_names()
    if not inputs or not all(isinstance(name, str) for name in inputs):
        raise record.declaration.origin().error(
            RegistrationError,
            "register_grad takes names of inputs",
            expected=quote(valid),
            found=", ".join(show(name) if isinstance(name, str) else type(name).__name__ for name in inputs) or "none",
            do=f"write @op.register_grad({show(next(iter(valid), 'x'))})",
        )
    for name in inputs:
        if name not in valid:
            raise record.declaration.origin().error(
                RegistrationError,
                f"register_grad names {name!r}, which is not a differentiable input",
                expected=quote(valid),
                found=repr(name),
                do=suggest(name, valid),
            )


def add_backward(
    record: OpRecord, function: F, *, once_differentiable: bool, materialize_grads: bool, replace: bool
) -> F:
    """Register the gradients of all inputs, bound by name."""
    registered, _ = adapter_of(record.declaration).gradient_rule(Backward.kind, function, ())
    rule = rules.bind_backward(
        record.declaration, registered, once_differentiable=once_differentiable, materialize_grads=materialize_grads
    )
    _add(record, rule, replace=replace)
    return function


def add_gradient(
    record: OpRecord,
    named: tuple[str, ...],
    function: F,
    *,
    once_differentiable: bool,
    materialize_grads: bool,
    replace: bool,
) -> F:
    """Register the gradients of some inputs, bound by name."""
    title = Gradient.title_of(named)
    registered, inputs = adapter_of(record.declaration).gradient_rule(title, function, named)
    rule = rules.bind_gradient(
        record.declaration,
        registered,
        named,
        inputs,
        once_differentiable=once_differentiable,
        materialize_grads=materialize_grads,
    )
    _add(record, rule, replace=replace)
    return function


def add_jvp(record: OpRecord, function: F, *, replace: bool) -> F:
    """Register a forward-mode rule bound by name."""
    registered = adapter_of(record.declaration).jvp_rule(function)
    _add(record, rules.bind_jvp(record.declaration, registered), replace=replace)
    return function


def add_drop_in(
    record: OpRecord, backward: Callable[..., Any], setup_context: Callable[..., Any] | None, *, replace: bool
) -> None:
    """Register a backward and a setup_context as `torch.library` takes them."""
    schema = record.declaration.schema
    if schema.mutated_arguments:
        raise record.declaration.origin(location_of(backward)).error(
            RegistrationError,
            "register_autograd cannot express an op that mutates",
            do="use register_backward: there, grad_<input> is the gradient after the call",
        )
    adapter = adapter_of(record.declaration)
    expected = ["ctx", *(f"grad_{name}" for name in adapter.output_names())]
    rules.check_signature(record.declaration, "backward", backward, expected)
    backward, setup_context = adapter.drop_in(backward, setup_context)
    takes_keywords, by_keyword = (False, False) if setup_context is None else _setup_style(record, setup_context)
    rule = DropIn(location_of(backward), backward, setup_context, takes_keywords, by_keyword)
    _add(record, rule, replace=replace)


def _setup_style(record: OpRecord, setup_context: Callable[..., Any]) -> tuple[bool, bool]:
    """Return whether a setup_context has a parameter for keyword-only inputs, and whether it is called by keyword.

    Torch calls it by keyword, and people name its parameters as they like.
    """
    names = list(inspect.signature(setup_context).parameters)
    is_catch_all = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(setup_context).parameters.values())
    has_keywords = any(argument.is_keyword_only for argument in record.declaration.schema.arguments)
    takes_keywords = has_keywords and ("keyword_only_inputs" in names or is_catch_all)
    by_keyword = is_catch_all or {"ctx", "inputs", "output"} <= set(names)
    keywords = ["ctx", "inputs", "output"] + (["keyword_only_inputs"] if takes_keywords else [])
    rules.check_signature(
        record.declaration,
        "setup_context",
        setup_context,
        [] if by_keyword else keywords,
        keywords if by_keyword else [],
    )
    return takes_keywords, by_keyword


def add_vmap(record: OpRecord, function: F, *, replace: bool) -> F:
    """Register a batching rule."""
    schema, adapter = record.declaration.schema, adapter_of(record.declaration)
    registered = take_all(record.declaration, "vmap rule", function, adapter.parameters(), ["info", "in_dims"])
    registered = adapter.vmap_rule(registered)
    positional = ["info", "in_dims", *rules.positional_of(schema)]
    rules.check_signature(record.declaration, "vmap rule", registered, positional, rules.keywords_of(schema))
    _add(record, Vmap(location_of(function), registered), replace=replace)
    return function


def add_autocast(record: OpRecord, device_type: str, inputs: Any, output: Any, *, replace: bool) -> None:
    """Register an autocast policy (Any: what the author wrote; see `parse_policy`)."""
    adapter = adapter_of(record.declaration)
    policy = parse_policy(record.declaration, device_type, adapter.by_name(inputs), adapter.by_name(output))
    location = f"register_autocast({device_type!r}, {policy.text})"
    _add(record, Autocast(location, policy), replace=replace)


def add_effect(record: OpRecord, effect: Any) -> None:  # Any: torch's EffectType, which has no public name, or None
    """Register an effect, in the place of the one before."""
    _add(record, Effect(f"register_effect({effect})", effect), replace=True)


def add_torch_dispatch(record: OpRecord, cls: type, function: F, *, replace: bool) -> F:
    """Register what the op does for a subclass or a mode."""
    if not isinstance(cls, type):
        raise record.declaration.origin(location_of(function)).error(
            RegistrationError, "register_torch_dispatch takes a class", found=show(cls)
        )
    rules.check_signature(
        record.declaration, "torch_dispatch rule", function, ["cls", "func", "types", "args", "kwargs"]
    )
    _add(record, TorchDispatch(location_of(function), function, cls), replace=replace)
    return function


def add_samples(record: OpRecord, function: F, *, replace: bool) -> F:
    """Register a generator of samples."""
    rules.check_signature(record.declaration, "generator of samples", function, ["make"])
    record.add(Samples(location_of(function), function), replace=replace)
    return function
