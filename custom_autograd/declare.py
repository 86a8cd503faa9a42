"""Declares ops: from a function and its author's wishes to an entry that the dispatcher knows."""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

import torch

from custom_autograd.calls.kernel_options import Terms, make_kernel
from custom_autograd.core.annotations import read_function
from custom_autograd.core.errors import DeclarationError
from custom_autograd.core.inference import schema_of
from custom_autograd.core.locations import (
    is_declared_by_torch,
    location_of_declaration,
    modules_of,
)
from custom_autograd.core.messages import quote, show
from custom_autograd.core.names import Name, names_of, parse_name
from custom_autograd.core.schema import Schema
from custom_autograd.core.wish import Refusal, Wish
from custom_autograd.pytrees.adapters import flat_kernel_function
from custom_autograd.pytrees.argument_tree import find_form, flat_wish
from custom_autograd.register import attach_capabilities
from custom_autograd.registration import library, registry
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.kernel import declared_kernel
from custom_autograd.registration.registry import Entry
from custom_autograd.torch_private.dispatch import is_defined


class Options(TypedDict, total=False):
    """The options of `custom_op` but `hidden`, for type checkers."""

    mutates_args: str | Iterable[str]
    device_types: str | Sequence[str] | None
    schema: str | None
    tags: Sequence[torch.Tag] | None
    outputs: Sequence[str] | None
    non_differentiable: Sequence[str]
    aliases: Mapping[str, str] | None
    reference: bool
    static: Sequence[str]
    replace: bool


def wish_of(
    name: str,
    declared: object,
    mutates_args: str | Iterable[str],
    schema: str | None,
    outputs: Sequence[str] | None,
    hidden: Sequence[str],
    non_differentiable: Sequence[str],
    tags: Sequence[torch.Tag] | None,
    aliases: Mapping[str, str] | None,
    static: Sequence[str],
) -> Wish:
    """Return the arguments of `custom_op`, normalised; `declared` is what it decorates."""
    refuse = Refusal(name, location_of_declaration(declared))
    mutates: str | tuple[str, ...] = (
        "unknown" if mutates_args == "unknown" else _listed(refuse, "mutates_args", mutates_args)
    )
    return Wish(
        op=name,
        mutates=mutates,
        schema=schema,
        outputs=None if outputs is None else _listed(refuse, "outputs", outputs),
        hidden=_listed(refuse, "hidden", hidden),
        non_differentiable=_listed(refuse, "non_differentiable", non_differentiable),
        tags=_tags(refuse, tags),
        aliases=_aliases(refuse, aliases),
        static=_listed(refuse, "static", static),
    )


def _aliases(refuse: Refusal, aliases: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    found = {} if aliases is None else aliases
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for pair in found.items() for name in pair):
        problem = "aliases= takes a name of an input for a name of an output"
        raise refuse(problem, expected="{'output': 'x'}", found=show(aliases))
    return tuple(found.items())


def _listed(refuse: Refusal, option: str, names: Any) -> tuple[str, ...]:  # Any: whatever the author wrote
    """Return one name or several as a tuple; raise for anything else."""
    if not isinstance(names, Iterable):
        raise refuse(f"{option}= takes names", expected="a string or several", found=show(names))
    return names_of(names)


def _tags(refuse: Refusal, tags: torch.Tag | Sequence[torch.Tag] | None) -> tuple[torch.Tag, ...]:
    found = (tags,) if isinstance(tags, torch.Tag) else tuple(tags or ())
    if not all(isinstance(tag, torch.Tag) for tag in found):
        raise refuse("tags= takes dispatcher tags", expected="torch.Tag.pointwise, ...", found=show(tags))
    return found


def declare(
    function: Callable[..., Any],
    wish: Wish,
    device_types: str | Sequence[str] | None,
    *,
    is_reference: bool,
    replace: bool,
) -> Entry:
    """Declare an op: schema, registry, dispatcher, capabilities.

    Raises:
        DeclarationError: it cannot be an op, or the name is taken.
    """
    refuse = Refusal(wish.op, location_of_declaration(function))
    name = parse_name(wish.op, refuse.location, is_torchs=is_declared_by_torch())
    if not callable(function):
        raise _not_callable(refuse, function)
    devices = None if device_types is None else _listed(refuse, "device_types", device_types)
    written = read_function(function, wish, refuse)
    form = find_form(written, wish, refuse)
    if form is None:
        schema = schema_of(function, written, wish, refuse)
    else:
        wish = flat_wish(wish, form)
        schema = schema_of(function, form.flat, wish, refuse)
        function = flat_kernel_function(form, schema, function, wish.op)
    declaration = Declaration(
        name, schema, function, refuse.location, devices, wish.tags, is_reference, written.signature, form
    )
    with registry.one_declaration_at_a_time():
        return define(declaration, replace=replace)


def _not_callable(refuse: Refusal, found: object) -> DeclarationError:
    do = "declare what Class.method gives" if isinstance(found, classmethod) else None
    return refuse("the declared object is not callable", found=show(found), do=do)


def define(declaration: Declaration, *, replace: bool) -> Entry:
    """Make an op known to the registry and the dispatcher, or leave both as they were."""
    name, devices, function = declaration.name, declaration.device_types, declaration.function
    entry, replaced = registry.claim(declaration, replace=replace)
    entry.modules = modules_of(function)
    for device_type in devices or (None,):
        kernel = (
            declared_kernel(declaration)
            if device_type is None
            else make_kernel(declaration, device_type, function, declaration.location, Terms())
        )
        entry.kernels.add(kernel, replace=False)
    try:
        if replaced is not None:
            _move(replaced)
        _attach(entry, name)
    except Exception as error:
        registry.restore(str(name), replaced)
        library.undefine(entry)
        if replaced is not None:
            library.undefine(replaced)
            _attach(replaced, name)
        raise DeclarationError(
            str(name),
            f"the dispatcher refuses the op: {error}",
            found=declaration.schema.text,
            declared=declaration.location,
        ) from error
    return entry


def _attach(entry: Entry, home: Name) -> None:
    library.define(entry, home)
    attach_capabilities(entry)
    library.publish(entry)


def _move(entry: Entry) -> None:
    """Move a replaced op to a name of its own, where old handles find it as it was."""
    numbered = (entry.declaration.name.suffixed(f"__replaced_{number}") for number in itertools.count(1))
    home = next(name for name in numbered if not is_defined(name.namespace, name.name, name.overload))
    library.undefine(entry)
    _attach(entry, home)


def capabilities(entry: Entry) -> dict[str, str]:
    """Return where each capability of the op comes from, by name."""
    return {capability.name: capability.describe(entry) for capability in entry.capabilities}


def signature_of(entry: Entry) -> inspect.Signature:
    """Return the signature of a call: the function's own, or for a manual schema the schema's names."""
    signature = entry.declaration.signature or _signature_of_schema(entry.declaration.schema)
    visible = entry.declaration.schema.visible_outputs
    if entry.declaration.schema.hidden_outputs and len(visible) == 1:
        return signature.replace(return_annotation=torch.Tensor)
    if entry.declaration.schema.hidden_outputs:
        return signature.replace(return_annotation=inspect.Signature.empty)
    return signature


def _signature_of_schema(schema: Schema) -> inspect.Signature:
    """For a builtin that does not say what it takes."""
    return inspect.Signature(
        [
            inspect.Parameter(
                argument.name,
                argument.kind,
                default=argument.default if argument.has_default else inspect.Parameter.empty,
            )
            for argument in schema.arguments
        ]
    )


def pickled(entry: Entry) -> tuple[str, tuple[str, ...]]:
    """Return what an op is pickled as: its name, and the modules one of which declares it.

    Raises:
        DeclarationError: the op was replaced, so that its name would bring another one.
    """
    if registry.find_entry(entry.name) is not entry:
        raise DeclarationError(
            entry.name,
            "the op was replaced by another one of its name, and so it cannot be pickled: ops pickle by name",
            declared=entry.declaration.location,
            do="pickle the op that has the name now, or declare this one under another",
        )
    return entry.name, entry.modules


def find_or_import(name: str, modules: str | tuple[str, ...]) -> Entry:
    """Return the op of that name, after importing the modules one of which declares it (or the only one).

    Raises:
        DeclarationError: none of them does so here.
    """
    candidates, problems = names_of(modules), []
    for module in candidates:
        entry = registry.find_entry(name)
        if entry is not None:
            return entry
        try:
            importlib.import_module(module)
        except ImportError as error:
            problems.append(f"{module}: {error}")
    entry = registry.find_entry(name)
    if entry is None:
        raise _nowhere(name, candidates, problems)
    return entry


def _nowhere(name: str, modules: tuple[str, ...], problems: list[str]) -> DeclarationError:
    if "__main__" in modules:
        found = "an op that was declared in the program that pickled it, in its '__main__'"
        do = "declare it in a module that both programs import; in a script, outside of `if __name__ == '__main__'`"
    else:
        found = "; ".join(problems) or f"module {quote(modules)} without it"
        do = "import the module that declares it before unpickling"
    return DeclarationError(name, "the op is not declared in this process", found=found, do=do)
