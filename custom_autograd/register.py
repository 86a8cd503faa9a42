"""Registers rules and kernels: the right slot, the checks that can be made at once, and what must be attached."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from custom_autograd.calls.kernel_options import Terms, make_kernel
from custom_autograd.capabilities import CAPABILITIES, effects
from custom_autograd.capabilities.autocast.caster import slot_of
from custom_autograd.capabilities.autocast.policies import parse_policy
from custom_autograd.capabilities.subclasses import capability as subclasses
from custom_autograd.core.errors import RegistrationError
from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import quote, show, suggest
from custom_autograd.core.names import names_of
from custom_autograd.dispatch import attaching as autograd_kernel
from custom_autograd.pytrees.adapters import ByName, by_flat_name, check_call, flat_function, flat_kernel_function
from custom_autograd.pytrees.positional_rules import TorchStyle, flat_vmap
from custom_autograd.registration import rules
from custom_autograd.registration.registry import Entry
from custom_autograd.registration.rules import Rule
from custom_autograd.registration.shorter_rules import parameters_of, take_all
from custom_autograd.torch_private.definitions import is_of_profile
from custom_autograd.torch_private.dispatch import key_of_device

F = TypeVar("F", bound=Callable[..., Any])


def attach_capabilities(entry: Entry) -> None:
    """Lets every subsystem of PyTorch see what is registered for an op now."""
    entry.capabilities = CAPABILITIES
    for capability in CAPABILITIES:
        capability.attach(entry)


def _add(entry: Entry, rule: Rule, *, replace: bool) -> None:
    """Fills a slot, and lets every subsystem see the change."""
    with entry.lock:
        entry.add(rule, replace=replace)
        attach_capabilities(entry)


def add_kernel(
    entry: Entry, device_types: str | Sequence[str] | None, function: F, terms: Terms, *, replace: bool
) -> F:
    """Registers a kernel for each device type."""
    declaration = entry.declaration
    registered: Callable[..., Any] = function
    if declaration.form is not None:
        check_call(declaration.form, declaration, "kernel", function)
        registered = flat_kernel_function(declaration.form, declaration.schema, function, entry.name)
    for device_type in (None,) if device_types is None else names_of(device_types):
        slot = f"{device_type or 'default'} kernel"
        rules.check_call(declaration, slot, registered)
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
    if not schema.tensor_arguments and not any(a.type.startswith("Device") for a in schema.arguments):
        raise entry.declaration.origin(location_of(function)).error(
            RegistrationError,
            "an op without tensors cannot choose between devices",
            expected="an argument 'device: torch.device'",
            do="add one, or declare the op with device_types=None",
        )


def add_by_position(entry: Entry, slot: str, function: F, *, replace: bool) -> F:
    """Registers what is called like the op itself."""
    schema, form = entry.declaration.schema, entry.declaration.form
    registered: Callable[..., Any] = function
    if slot == "fake":
        given = parameters_of(schema) if form is None else form.parameters()
        registered = take_all(entry.declaration, slot, function, given)
    if form is not None:
        check_call(form, entry.declaration, slot, registered)
        registered = flat_function(form, registered, entry.name, slot)
    rule = rules.bind_by_position(entry.declaration, slot, registered)
    _add(entry, rule, replace=replace or _is_for_a_while(entry.find(slot), rule))
    return function


def _is_for_a_while(old: Rule | None, new: Rule) -> bool:
    """Return True if torch.export puts a fake of its own in the place of one, or puts that one back."""
    return old is not None and (is_of_profile(old.function) or is_of_profile(new.function))


def check_inputs(entry: Entry, inputs: Sequence[str]) -> None:
    """Checks names given to `register_grad`."""
    valid = tuple(argument.name for argument in entry.declaration.schema.differentiable_arguments)
    if entry.declaration.form is not None:
        valid = ByName(entry.declaration.form, entry.declaration).differentiable_names()
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
                f"register_grad names {name!r}, which is no differentiable input",
                expected=quote(valid),
                found=repr(name),
                do=suggest(name, valid),
            )


def add_gradient(
    entry: Entry,
    slot: str,
    function: F,
    inputs: tuple[str, ...],
    *,
    once_differentiable: bool,
    materialize_grads: bool,
    replace: bool,
) -> F:
    """Registers a gradient rule bound by name."""
    registered: Callable[..., Any] = function
    if entry.declaration.form is not None:
        by_name = ByName(entry.declaration.form, entry.declaration)
        registered, inputs = by_name.gradient_rule(slot, function, inputs), by_name.flat_inputs(inputs)
    rule = rules.bind_gradient_rule(
        entry.declaration,
        slot,
        registered,
        inputs,
        once_differentiable=once_differentiable,
        materialize_grads=materialize_grads,
    )
    _add(entry, rule, replace=replace)
    return function


def add_jvp(entry: Entry, function: F, *, replace: bool) -> F:
    """Registers a forward-mode rule bound by name."""
    form = entry.declaration.form
    registered: Callable[..., Any] = function
    if form is not None:
        registered = ByName(form, entry.declaration).jvp_rule(function)
    _add(entry, rules.bind_jvp_rule(entry.declaration, registered), replace=replace)
    return function


def add_drop_in(
    entry: Entry, backward: Callable[..., Any], setup_context: Callable[..., Any] | None, *, replace: bool
) -> None:
    """Registers a backward and a setup_context as `torch.library` takes them."""
    schema = entry.declaration.schema
    if schema.mutated_arguments:
        raise entry.declaration.origin(location_of(backward)).error(
            RegistrationError,
            "register_autograd cannot express an op that mutates",
            do="use register_backward: there, grad_<input> is the gradient after the call",
        )
    form = entry.declaration.form
    outputs = schema.outputs if form is None or form.results is None else form.results.nodes
    rules.check_signature(
        entry.declaration, "backward", backward, ["ctx", *(f"grad_{output.name}" for output in outputs)]
    )
    if form is not None:
        twin = TorchStyle(form, entry.declaration, backward, setup_context)
        backward, setup_context = twin.backward, twin.setup
    extra = {"takes_keywords": False, "by_keyword": False}
    if setup_context is not None:
        extra = _setup_style(entry, setup_context)
    _add(
        entry,
        Rule("autograd", backward, location_of(backward), setup_context=setup_context, extra=extra),
        replace=replace,
    )


def _setup_style(entry: Entry, setup_context: Callable[..., Any]) -> dict[str, bool]:
    """How a setup_context is to be called: torch calls by keyword, and people name parameters as they like."""
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
    return {"takes_keywords": takes_keywords, "by_keyword": by_keyword}


def add_vmap(entry: Entry, function: F, *, replace: bool) -> F:
    """Registers a batching rule."""
    schema, form = entry.declaration.schema, entry.declaration.form
    given = parameters_of(schema) if form is None else form.parameters()
    registered = take_all(entry.declaration, "vmap rule", function, given, ["info", "in_dims"])
    if form is not None:
        own = [["info", "in_dims", *names] if place == 0 else names for place, names in enumerate(form.own_names())]
        rules.check_signature(entry.declaration, "vmap rule", registered, *own)
        registered = flat_vmap(form, entry.declaration, registered)
    positional = ["info", "in_dims", *rules.positional_of(schema)]
    rules.check_signature(entry.declaration, "vmap rule", registered, positional, rules.keywords_of(schema))
    _add(entry, Rule("vmap", registered, location_of(function)), replace=replace)
    return function


def add_autocast(entry: Entry, device_type: str, inputs: Any, output: Any, *, replace: bool) -> None:
    """Registers an autocast policy (Any: what the author wrote; see `parse_policy`)."""
    form = entry.declaration.form
    if form is not None:
        inputs, output = by_flat_name(form, inputs), by_flat_name(form, output)
    policy = parse_policy(entry.declaration, device_type, inputs, output)
    location = f"register_autocast({device_type!r}, {policy.text})"
    _add(entry, Rule(slot_of(device_type), _no_function, location, extra={"policy": policy}), replace=replace)


def _no_function() -> None:
    """Stands in rules that are data."""


def add_effect(entry: Entry, effect: Any) -> None:  # Any: torch's EffectType, which has no public name, or None
    """Register an effect, in the place of the one before."""
    _add(entry, Rule(effects.SLOT, _no_function, f"register_effect({effect})", extra={"effect": effect}), replace=True)


def add_torch_dispatch(entry: Entry, cls: type, function: F, *, replace: bool) -> F:
    """Registers what the op does for a subclass or a mode."""
    if not isinstance(cls, type):
        raise entry.declaration.origin(location_of(function)).error(
            RegistrationError, "register_torch_dispatch takes a class", found=show(cls)
        )
    rules.check_signature(
        entry.declaration, "torch_dispatch rule", function, ["cls", "func", "types", "args", "kwargs"]
    )
    rule = Rule(subclasses.slot_of(cls), function, location_of(function), extra={"cls": cls})
    _add(entry, rule, replace=replace)
    return function


def add_samples(entry: Entry, function: F, *, replace: bool) -> F:
    """Registers a generator of samples."""
    rules.check_signature(entry.declaration, "generator of samples", function, ["make"])
    entry.add(Rule("samples", function, location_of(function)), replace=replace)
    return function
