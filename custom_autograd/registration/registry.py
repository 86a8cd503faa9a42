"""The one table of ops: the record of each, with what was registered for it and what other rooms keep on it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeAlias

import torch

from custom_autograd.core.errors import DeclarationError, RegistrationError
from custom_autograd.core.locks import ThreadLock
from custom_autograd.core.messages import quote
from custom_autograd.core.signatures import (
    is_imported_twice,
    is_other_closure,
    is_redeclaration,
    is_redefinition,
    module_of,
)
from custom_autograd.registration.capability import Capability
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.kernel_table import KernelTable
from custom_autograd.registration.rule_types import Inline, ReferenceRule, Registration, Registrations, Rule
from custom_autograd.schema.names import Name
from custom_autograd.torch_private import dispatch
from custom_autograd.torch_private.definitions import OwnDefinition, changes
from custom_autograd.torch_private.dispatch import OpOverload

GeneratedCall: TypeAlias = Callable[..., Any]
"""A generated function that calls one op (Any: it takes and returns what the op's schema declares)."""


class CallsByDispatcher(Protocol):
    """The calls of one op by way of the dispatcher; see execution/generated.py."""

    generate: Callable[[], None]  # to be called before the three below are read
    call: GeneratedCall  # the call of the flat op
    outer: GeneratedCall  # the same with the containers that its author sees
    in_graphs: GeneratedCall  # what Dynamo traces in place of `op(...)`

    @property
    def observed(self) -> GeneratedCall:
        """Return the call of the flat op, as observers below Python see it."""
        raise NotImplementedError


class RecognisedCalls(Protocol):
    """The calls of one op that native code recognises; see native/native_calls.py."""

    def expect(self) -> None:
        """Note that the dispatcher has run the first call of a kind, which passed every check."""

    def forget(self) -> None:
        """Forget them all: something was registered since they were proven."""

    def take_over(self) -> None:
        """Note that the op's handle has its `__call__`."""


class GeneratedCode(Protocol):
    """The code that is generated from the schema and the rules of one op; see execution/generated.py."""

    @property
    def source(self) -> str:
        """Return its text."""
        raise NotImplementedError


class Road:
    """What runs when one op is called, found at the first call; most of it is kept until something changes.

    The dispatcher cannot exchange a kernel: what is registered there looks here in each call.

    Attributes:
        at_keys: what runs at dispatch keys, by the name of the key; for a backend by device type, or None for those
            without a kernel of their own.
        generated: what was generated from the schema and the rules, by level of validation; replaced, never emptied.
        plan: where each derivative comes from, by the rules registered when it was made; see execution/plan.py.
        native: the calls that native code recognises, or None.
        uncalled: the handles whose classes have no generated `__call__` yet.
        called: those whose classes have one.
        around_autograd: runs calls that a capability takes before autograd does; else NotImplemented; or None.
        after_call: notes calls under a mode of `__torch_dispatch__`, with their results, when their nodes are recorded;
            or None. Those of ops that are made of other ops are not noted, but those of the others are.
        is_traced: the fake has run, so that compiled graphs may hold the op.
        has_own_kernels: the op is a variant, and a kernel was registered for it; Dynamo reads it.
        made: what subsystems keep for the op, each under its name (Any: objects of theirs).
    """

    def __init__(self) -> None:
        self.plan: tuple[Any, ...] | None = None
        self.native: RecognisedCalls | None = None
        self.uncalled: weakref.WeakSet[OwnDefinition] = weakref.WeakSet()
        self.called: weakref.WeakSet[OwnDefinition] = weakref.WeakSet()
        self.around_autograd: GeneratedCall | None = None
        self.after_call: Callable[[tuple[Any, ...], dict[str, Any], Any], None] | None = None
        self.is_traced = False
        self.has_own_kernels = False
        self.made: dict[str, Any] = {}
        self.forget()

    def forget(self) -> None:
        """Drop what depends on the rules or the level of validation of the op: one has changed."""
        self.generated: dict[str, GeneratedCode] = {}
        self.at_keys: dict[str | None, GeneratedCall] = {}

    def leave_keys(self) -> None:
        """Drop what runs at dispatch keys: any kernel, or the level of validation, has changed."""
        self.at_keys = {}


class Definition:
    """The dispatcher's entry for one op; replaced when it is defined there, and again under another name.

    Attributes:
        name: in the dispatcher; the op's own, until a replacement takes that.
        qualifier: its name within the namespace.
        library: the handle through which everything was registered; None until the op is defined, and if it is not.
        output: the second op, if the first returns a tuple of one; see dispatcher_library.py.
        observed: what calls the op so that profilers see it.
        attached: the dispatch keys, the names of subsystems and the classes that something is attached to.
    """

    def __init__(self, name: Name, library: torch.library.Library | None = None) -> None:
        self.name, self.qualifier, self.library = name, name.qualifier, library
        self.output: OpOverload | None = None
        self.observed: GeneratedCall | None = None
        self.attached: set[str | type] = set()


class OpRecord:
    """One declared op: its declaration, and what was registered for it since.

    Attributes:
        declaration: what was fixed when it was declared.
        name: the qualified name, as declared.
        kernels: its kernels by device type.
        definition: its entry in the dispatcher.
        overload: the dispatcher's op.
        dispatched: its calls by way of the dispatcher; None until it is defined.
        handle: the op as its author holds it; what unpickling gives, and what torch.library registers with.
        call_behind: what the class's own `__call__` runs, where a compiler has seen that before the first eager call.
        road: what its calls run.
        validation: the op's own level of validation, or None.
        registrations: the rules and policies that are registered; replaced, never changed.
        variants: the entries of its variants that are declared, "inplace" and "out".
        lock: held while something is registered or generated.
    """

    capabilities: ClassVar[tuple[Capability, ...]] = ()
    """The subsystems of PyTorch that know ops; declare.py sets them, from a layer above."""

    when_called: ClassVar[tuple[Callable[[OpRecord], None], ...]] = ()
    """Called with an op at its first call by way of the dispatcher, and at the next after each change."""

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.name = str(declaration.name)
        self.kernels = KernelTable(declaration)
        self.definition = Definition(declaration.name)
        self.overload: OpOverload | None = None
        self.dispatched: CallsByDispatcher | None = None
        self.handle: OwnDefinition | None = None
        self.call_behind: GeneratedCall | None = None
        self.road = Road()
        self.validation: str | None = None
        self.lock = ThreadLock(self.drop_half_made)
        self.registrations = Registrations()
        self.variants: dict[str, OpRecord] = {}

    def reference(self) -> Callable[..., Any] | None:  # Any: takes and returns what the schema declares
        """Return the computation in differentiable PyTorch operations, or None."""
        rule = self.registrations.get(ReferenceRule)
        if rule is not None:
            return rule.function
        return self.declaration.function if self.declaration.is_reference else None

    @property
    def reference_location(self) -> str:
        """Return file:line of the reference; of the declaration, if that has it or there is none."""
        rule = self.registrations.get(ReferenceRule)
        return self.declaration.location if rule is None else rule.location

    @property
    def is_inlined(self) -> bool:
        """Return True if compiled graphs may hold something else in place of the op."""
        return self.registrations.get(Inline) is not None or self.kernels.is_inlined

    def add(self, new: Registration, *, replace: bool) -> None:
        """Register a rule or a policy, and drop what was generated before; raise if it conflicts without `replace`."""
        self.declaration.check_bools(replace=replace)
        with self.lock:
            later = self.registrations.with_(new)
            others = [other for other in self.registrations.left_out_of(later) if not _is_again(other, new)]
            if others and not replace:
                raise self.declaration.error(
                    RegistrationError,
                    f"the {others[0].title} rule is already registered",
                    found=f"one at {others[0].location}, another at {new.location}",
                    do="pass replace=True if that is meant",
                )
            self.registrations = later
            self.forget()

    def forget(self) -> None:
        """Drop what was generated from rules that have changed."""
        self.road.forget()  # a new kernel needs no new code: KernelTable notes the change, which drops `at_keys`
        changes.note()

    def drop_half_made(self) -> None:
        """Drop what may be out of date in a forked child: calls that native code knows, and code in mid-change."""
        if self.lock.was_held:
            self.road.forget()
        if self.road.native is not None:
            self.road.native.forget()


def _drop_half_declared() -> None:
    """Drop, in a forked child, the ops that another thread of the parent was declaring."""
    if one_declaration_at_a_time.was_held:
        for name, record in list(_RECORDS.items()):
            if record.dispatched is None:
                del _RECORDS[name]


_RECORDS: dict[str, OpRecord] = {}  # the ops of this process
one_declaration_at_a_time = ThreadLock(_drop_half_declared)
"""Held while an op takes its name and is registered with the dispatcher, which is several steps."""


def claim(declaration: Declaration, *, replace: bool) -> tuple[OpRecord, OpRecord | None]:
    """Take the name of a new op; return its record, and the one that it replaces, if any."""
    name = str(declaration.name)
    with one_declaration_at_a_time:
        taken = _RECORDS.get(name)
        if taken is not None and not replace and not is_redeclaration(taken.declaration.function, declaration.function):
            raise _taken(taken.declaration, declaration)
        if taken is None:
            _check_free(declaration)
        record = OpRecord(declaration)
        _RECORDS[name] = record
        return record, taken


def restore(name: str, record: OpRecord | None) -> None:
    """Undo `claim`, where registering the op with the dispatcher failed."""
    with one_declaration_at_a_time:
        if record is None:
            _RECORDS.pop(name, None)
        else:
            _RECORDS[name] = record


def find_record(name: str) -> OpRecord | None:
    """Return the op of that qualified name, or None."""
    return _RECORDS.get(name)


def record_of(value: object) -> OpRecord | None:
    """Return the record of an op, given itself, a handle or a variant; None for everything else."""
    if isinstance(value, OpRecord):
        return value
    try:
        found = getattr(value, "_record", None)
    except Exception:  # noqa: BLE001 - the `__getattr__` of an object of a user raises something else
        return None
    return found if isinstance(found, OpRecord) else None


def all_records() -> tuple[OpRecord, ...]:
    """Return every declared op, in the order of declaration."""
    return tuple(_RECORDS.values())


def _is_again(old: Registration, new: Registration) -> bool:
    """Return True if the author of a rule registers it again; rules that are data are the same at equal settings."""
    if old.title != new.title:
        return False
    if not (isinstance(old, Rule) and isinstance(new, Rule)) or old.function is new.function:
        return old.location == new.location
    return is_redefinition(old.function, new.function) and not is_other_closure(old.function, new.function)


def _taken(old: Declaration, new: Declaration) -> DeclarationError:
    if is_imported_twice(old.function, new.function):
        modules = module_of(old.function), module_of(new.function)
        return DeclarationError(
            str(new.name),
            "the op is declared twice, because its file is imported under two names",
            found=f"{new.location} as {quote(modules)}",
            do="import the file under one name: declare ops in a module that the script imports",
        )
    return DeclarationError(
        str(new.name),
        "the op is already declared",
        found=f"one at {old.location}, another at {new.location}",
        do=f"rename one of them, for example {str(new.name.suffixed('_2'))!r}, or pass replace=True if that is meant",
    )


def _check_free(declaration: Declaration) -> None:
    name: Name = declaration.name
    namespace = getattr(torch.ops, name.namespace)
    if name.name in (*dir(type(namespace)), "name", "_dir"):
        raise declaration.error(
            DeclarationError,
            f"'{name.name}' cannot be the name of an op: torch.ops.{name.namespace}.{name.name} is something else",
            do=f"rename it, for example {str(name.suffixed('_op'))!r}",
        )
    if dispatch.is_defined(name.namespace, name.name, name.overload):
        raise declaration.error(
            DeclarationError,
            "an op of that name exists, and was not declared through custom_autograd",
            do=f"rename this one, for example {str(name.suffixed('_2'))!r}, or remove the other declaration",
        )
