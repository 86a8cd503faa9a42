"""Declares ops: from a function and its declaration options to an op record with an op in the dispatcher."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace as replace_fields
from typing import Any

import torch

from custom_autograd.capabilities import CAPABILITIES, inlining, shape_notation
from custom_autograd.capabilities import checkpoint as checkpointing
from custom_autograd.containers.named_fields import find_tree
from custom_autograd.core.device_types import has_index, name_of
from custom_autograd.core.errors import DeclarationError
from custom_autograd.core.locations import location_of_declaration, module_of_caller, modules_of
from custom_autograd.core.messages import quote, show
from custom_autograd.core.option_types import check_bools, check_type, listed, several
from custom_autograd.core.signatures import WITHOUT_DELAY, find_delay
from custom_autograd.execution.kernel_options import KernelOptions, make_kernel
from custom_autograd.native import loading
from custom_autograd.registration import dispatcher_library as library
from custom_autograd.registration import registry
from custom_autograd.registration.capability import attach_all
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.kernel import declared_kernel
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import Inline, Registration
from custom_autograd.registration.rules import check_order, positional_of
from custom_autograd.schema.annotations import DeclarationOptions, Refusal, only_readable, read_function
from custom_autograd.schema.inference import schema_of
from custom_autograd.schema.names import Name, names_of, parse_name
from custom_autograd.schema.schema import Schema
from custom_autograd.shapes.rule import ShapeOptions
from custom_autograd.torch_private.dispatch import is_defined

# Before a fork, wait for what other threads import of this package.
#
# The child has the lock of a module that is being imported, and not the thread that would release it: it would wait for
# ever where it needs the module. Much of the package is imported by the first call that needs it, in any thread.


PACKAGE = __name__.partition(".")[0]
LOCKS: Collection[str] = getattr(importlib.import_module("importlib._bootstrap"), "_module_locks", ())
"""The modules that are being imported, by name: Python's own table of their locks, if this Python has one."""


def wait_for_imports() -> None:
    """Wait until no other thread is in the midst of importing a module of this package."""
    waited: set[str] = set()
    while found := {name for name in list(LOCKS) if f"{name}.".startswith(f"{PACKAGE}.")} - waited:
        for name in found:  # what this thread imports itself stays
            with contextlib.suppress(Exception):  # whoever imports it hears of that
                importlib.import_module(name)
        waited |= found


OpRecord.capabilities = CAPABILITIES
loading.watch()


def require_name(name: object) -> None:
    """Raise if a function takes the place of the name: `@custom_op` without one would fail at the first call only."""
    if callable(name):
        parse_name(name, location_of_declaration(name))


def options_of(
    refuse: Refusal,
    mutates_args: str | Iterable[str],
    schema: str | None,
    outputs: Sequence[str] | None,
    hidden: Sequence[str],
    non_differentiable: Sequence[str],
    tags: Sequence[torch.Tag] | None,
    aliases: Mapping[str, str] | None,
    static: Sequence[str],
    inline: str | None,
    checkpoint: str | None,
) -> DeclarationOptions:
    """Return the arguments of `custom_op`, normalised."""
    if inline not in (None, inlining.REFERENCE):
        problem = "inline= takes what a compiled graph holds in place of the op"
        raise refuse(problem, expected="'reference', or None", found=show(inline))
    if checkpoint not in (None, *checkpointing.DEFAULTS):
        problem = "checkpoint= takes what selective activation checkpointing does with the op"
        raise refuse(problem, expected="'save', 'recompute', or None", found=show(checkpoint))
    mutates: str | tuple[str, ...] = (
        "unknown" if mutates_args == "unknown" else listed(refuse, "mutates_args", mutates_args)
    )
    return DeclarationOptions(
        op=refuse.op,
        mutates=mutates,
        schema=schema,
        outputs=None if outputs is None else listed(refuse, "outputs", outputs),
        hidden=listed(refuse, "hidden", hidden),
        non_differentiable=listed(refuse, "non_differentiable", non_differentiable),
        tags=() if tags is None else _tags(refuse, tags),
        aliases=() if aliases is None else _aliases(refuse, aliases),
        static=listed(refuse, "static", static),
        inline=inline,
        checkpoint=checkpoint,
    )


def declare(
    function: Callable[..., Any],
    options: DeclarationOptions,
    device_types: str | Sequence[str] | None,
    refuse: Refusal,
    *,
    is_reference: bool,
    shapes: ShapeOptions,
    replace: bool,
) -> OpRecord:
    """Declare an op: schema, registry, dispatcher, capabilities; raise if it cannot be one, or its name is taken."""
    check_bools(lambda: refuse, reference=is_reference, replace=replace)
    caller = module_of_caller()
    name = parse_name(options.op, refuse.location, is_torchs=caller.partition(".")[0] == "torch")
    _check_runs(refuse, function)
    devices = None if device_types is None else _device_types(device_types, refuse)
    options = replace_fields(options, described=shape_notation.outputs_of(shapes))
    with only_readable(refuse):
        written = read_function(function, options, refuse)
        tree = find_tree(written, options, refuse)
        if tree is None:
            schema = schema_of(function, written, options, refuse)
        else:
            from custom_autograd.containers.argument_tree import flat_options  # imported for ops with containers

            options = flat_options(options, tree)
            schema = schema_of(function, tree.flat, options, refuse)
            function = tree.flat_kernel(schema, function, options.op)
    if devices and not schema.tensor_arguments and not schema.device_arguments:
        problem = "an op without tensors cannot choose between devices"
        do = "add one, or leave device_types= out"
        raise refuse(problem, expected="an argument 'device: torch.device'", found=schema.text, do=do)
    if options.checkpoint == checkpointing.SAVE and schema.mutated_arguments:
        problem = "an op that writes to its arguments must run again, or its writes are lost"
        raise refuse(problem, expected="checkpoint='recompute', or None", found="checkpoint='save'")
    modules = modules_of(function, caller)
    declaration = Declaration(
        name, schema, function, refuse.location, devices, options.tags, is_reference, written.signature, modules, tree
    )
    if options.schema is not None and written.signature is not None:
        check_order(declaration, "kernel", function, written.signature, positional_of(schema))
    by_line = shape_notation.declared_rule(declaration, shapes)
    rules: list[Registration] = [] if by_line is None else [by_line]
    if options.inline is not None:
        rules.append(Inline(refuse.location, options.inline))
    if options.checkpoint is not None:
        rules.append(checkpointing.Checkpoint(refuse.location, options.checkpoint))
    return define(declaration, *rules, replace=replace)


def _aliases(refuse: Refusal, aliases: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if not isinstance(aliases, Mapping) or not all(isinstance(name, str) for pair in aliases.items() for name in pair):
        problem = "aliases= takes a name of an input for a name of an output"
        raise refuse(problem, expected="{'output': 'x'}", found=show(aliases))
    return tuple(aliases.items())


def _tags(refuse: Refusal, tags: torch.Tag | Sequence[torch.Tag]) -> tuple[torch.Tag, ...]:
    found = several(tags)
    for tag in found:
        check_type(refuse, "tags", tag, (torch.Tag,), "dispatcher tags", example="(torch.Tag.pointwise,)")
    return found


def _device_types(device_types: str | Sequence[str], refuse: Refusal) -> tuple[str, ...]:
    """Return device types by the names that tensors have for them."""
    given = listed(refuse, "device_types", device_types, example="'cpu'")
    for one in given:
        if has_index(one):
            expected = f"a device type, such as {one.partition(':')[0]!r}"
            raise refuse("a kernel serves every device of a type", expected=expected, found=repr(one))
    return tuple(map(name_of, given))


def _check_runs(refuse: Refusal, function: object) -> None:
    """Refuse what is not callable, and a function that a call does not run."""
    if not callable(function):
        do = "declare what Class.method gives" if isinstance(function, classmethod) else None
        raise refuse("the declared object is not callable", expected="a function", found=show(function), do=do)
    delay = find_delay(function)
    if delay is not None:
        problem = f"the declared function returns {delay}, which has not run"
        raise refuse(problem, expected="a function that returns results", do=WITHOUT_DELAY)


def define(declaration: Declaration, *rules: Registration, replace: bool) -> OpRecord:
    """Make an op with these rules known to the registry and the dispatcher, or leave both as they were."""
    function = declaration.function
    kernels = [
        make_kernel(declaration, device_type, function, declaration.location, KernelOptions())
        for device_type in declaration.device_types or ()
    ]
    with all_or_nothing():
        record, replaced = registry.claim(declaration, replace=replace)
        record.kernels.add(*kernels or [declared_kernel(declaration)], replace=False)
        for rule in rules:
            record.add(rule, replace=False)
        try:
            if replaced is not None:
                _move(replaced)
            _attach(record, declaration.name)
        except Exception as error:
            problem = f"the dispatcher refuses the op: {error}"
            found = declaration.schema.text
            do = "change what the dispatcher names, in the annotations or in schema="
            raise declaration.error(DeclarationError, problem, found=found, do=do) from error
    return record


@contextmanager
def all_or_nothing() -> Iterator[None]:
    """Take back every op that is declared in the context if it raises."""
    with registry.one_declaration_at_a_time:
        before = {record.name: record for record in registry.all_records()}
        try:
            yield
        except BaseException:
            for record in registry.all_records():
                replaced = before.get(record.name)
                if replaced is not record:
                    _take_back(record, replaced)
            raise


def _take_back(record: OpRecord, replaced: OpRecord | None) -> None:
    registry.restore(record.name, replaced)
    library.undefine(record)
    if replaced is not None:
        library.undefine(replaced)
        _attach(replaced, record.declaration.name)


def _attach(record: OpRecord, dispatcher_name: Name) -> None:
    library.define(record, dispatcher_name)
    attach_all(record)
    library.publish(record)


def _move(record: OpRecord) -> None:
    """Move a replaced op to a name of its own, where old handles find it as it was."""
    numbered = (record.declaration.name.suffixed(f"__replaced_{number}") for number in itertools.count(1))
    dispatcher_name = next(name for name in numbered if not is_defined(name.namespace, name.name, name.overload))
    with record.lock:  # another thread may register a rule of it at the same time
        library.undefine(record)
        _attach(record, dispatcher_name)


def capabilities(record: OpRecord) -> dict[str, str]:
    """Return where each capability of the op comes from, by name."""
    return {capability.name: capability.describe(record) for capability in record.capabilities}


def signature_of(record: OpRecord) -> inspect.Signature:
    """Return the signature of a call: the function's own, or for a manual schema the schema's names."""
    signature = record.declaration.signature or _signature_of_schema(record.declaration.schema)
    visible = record.declaration.schema.visible_outputs
    if record.declaration.schema.hidden_outputs and len(visible) == 1:
        return signature.replace(return_annotation=torch.Tensor)
    if record.declaration.schema.hidden_outputs:
        return signature.replace(return_annotation=inspect.Signature.empty)
    return signature


def _signature_of_schema(schema: Schema) -> inspect.Signature:
    """Return a signature made from the schema, for a builtin without one."""
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


def pickled(record: OpRecord) -> tuple[str, tuple[str, ...]]:
    """Return what an op is pickled as: its name, and the modules one of which declares it."""
    if registry.find_record(record.name) is not record:
        raise record.declaration.error(
            DeclarationError,
            "the op was replaced by another one of its name, and so it cannot be pickled: ops pickle by name",
            do="pickle the op that has the name now, or declare this one under another",
        )
    return record.name, record.declaration.modules


def find_or_import(name: str, modules: str | tuple[str, ...]) -> OpRecord:
    """Return the op of that name, after importing the modules one of which declares it; raise if none does."""
    candidates, problems = names_of(modules), []
    for module in candidates:
        record = registry.find_record(name)
        if record is not None:
            return record
        try:
            importlib.import_module(module)
        except ImportError as error:
            problems.append(f"{module}: {error}")
    record = registry.find_record(name)
    if record is None:
        raise _nowhere(name, candidates, problems)
    return record


def _nowhere(name: str, modules: tuple[str, ...], problems: list[str]) -> DeclarationError:
    if "__main__" in modules:
        found = "an op that was declared in the program that pickled it, in its '__main__'"
        do = "declare it in a module that both programs import; in a script, outside of `if __name__ == '__main__'`"
    else:
        found = "; ".join(problems) or f"module {quote(modules)} without it"
        do = "import the module that declares it before unpickling"
    return DeclarationError(name, "the op is not declared in this process", found=found, do=do)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=wait_for_imports)
