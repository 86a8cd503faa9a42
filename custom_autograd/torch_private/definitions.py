"""What PyTorch knows of an op: its definition in torch.library, its schema, and who registered kernels for it.

CustomOpDef                    the class that torch.library's functions accept, without a public name for type checkers
CustomOpDef._backward_fn       the backward of register_autograd; the node looks it up whenever it runs
CustomOpDef._backend_fns       the kernels by device type, None for the default one; looked up at every call
CustomOpDef._schema, _tags, _init_fn, _abstract_fn, _setup_context_fn, _vmap_fn, _autocast_dtype, _torch_dispatch_fns
                               the rest of what was registered, which another op takes over
custom_ops.OPDEF_TO_LIB        the library of each definition, which another definition of its name destroys
custom_ops.OPDEFS              every definition by name: torch.library.register_*("ns::op", ...) registers with it
Library._register_effectful_op what CustomOpDef.register_effect calls
effects.EffectType             what it takes, besides None
simple_registry.singleton      the fake of each op, and where it was written: torch's messages and tools show it;
                               torch.library.register_fake reads source files to find that out
Library._registration_handles  what the library withdraws with itself, such as the fake of an op
fake_profile                   torch.export puts fakes of its own in place of the registered ones for a while

The dispatcher does not notify of a new kernel, and a query takes as long as a call. So:

- `torch.library.Library.impl`, `_destroy`, `torch.ops.load_library`: wrapped once, to count what is registered or
  withdrawn through them.
- `importlib.machinery.ExtensionFileLoader.create_module`: wrapped too, since the C++ of an extension module may
  register kernels when it is imported.
- `_C._dispatch_dump`: the kernels of an op, and the file of the `Library` through which each was registered.

What a shared library registers that is loaded by other means (by ctypes, say) is noticed with the next of these.

`torch._C.parse_schema` is what `torch.library.Library.define` parses with; there is no public way to it.

_library.opaque_object._resolve_opaque_type_info
                        under which name a class, or a base of it, is registered: with `register_opaque_type`, which is
                        `register_custom_class` from torch 2.15 on; `torch.library` exports neither
_library.opaque_object._OPAQUE_TYPES
                        the same in torch 2.11, by class
"""

from __future__ import annotations

import functools
import importlib.machinery
import inspect
import os
import re
import threading
import typing
import weakref
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import _C
from torch._library import opaque_object
from torch._library.custom_ops import OPDEF_TO_LIB, OPDEFS, CustomOpDef
from torch._library.effects import EffectType
from torch._library.simple_registry import singleton

from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.torch_private.dispatch import all_names

EFFECTS = tuple(EffectType)


class OwnDefinition(CustomOpDef):
    """Base of our ops. The constructor of torch's class registers with the dispatcher, so it is not called."""

    def __init__(self) -> None:
        """Register nothing."""


def register_fake(library: torch.library.Library, name: str, function: Callable[..., Any], location: str) -> None:
    """Register a fake for an op of a library, which withdraws it (Any: the function takes what the op does)."""
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


@dataclass(frozen=True, slots=True)
class Registered:
    """Everything that was registered with a definition of torch.library.custom_op (Any: a user's functions)."""

    name: str
    schema: str
    mutated: tuple[str, ...]
    tags: tuple[torch.Tag, ...]
    function: Callable[..., Any]
    kernels: dict[str | None, Callable[..., Any]]
    fake: Callable[..., Any] | None
    backward: Callable[..., Any] | None
    setup_context: Callable[..., Any] | None
    vmap: Callable[..., Any] | None
    autocast: dict[str, torch.dtype | None]
    torch_dispatch: dict[type, Callable[..., Any]]


def registered_with(definition: CustomOpDef) -> Registered:
    """Return what was registered with a definition; its kernels as they were given, without torch's wrapper."""
    written = [a.name for a in definition._opoverload._schema.arguments if a.alias_info and a.alias_info.is_write]
    return Registered(
        name=definition._qualname,
        mutated=tuple(written),
        schema=definition._schema,
        tags=tuple(definition._tags),
        function=definition._init_fn,
        kernels={device: _given(kernel) for device, kernel in definition._backend_fns.items()},
        fake=definition._abstract_fn,
        backward=definition._backward_fn,
        setup_context=definition._setup_context_fn,
        vmap=definition._vmap_fn,
        autocast=_autocast_of(definition),
        torch_dispatch=dict(definition._torch_dispatch_fns),
    )


def _autocast_of(definition: CustomOpDef) -> dict[str, torch.dtype | None]:
    """Return the dtype by device type: in one dict, or in torch 2.11 and 2.12 in an attribute for each device type."""
    if hasattr(definition, "_autocast_dtype"):
        return dict(definition._autocast_dtype)
    found = {device: getattr(definition, f"_autocast_{device}_dtype") for device in ("cuda", "cpu")}
    return {device: dtype for device, dtype in found.items() if dtype is not None}


def _given(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return what was registered, behind the wrapper in which torch looks for disabled kernels."""
    found: Callable[..., Any] = inspect.getclosurevars(inspect.unwrap(kernel)).nonlocals.get("fn", kernel)
    return found


Own = typing.TypeVar("Own", bound=OwnDefinition)


def replaced(definition: CustomOpDef, declare: Callable[[], Own]) -> Own:
    """Withdraw a definition, and let it call the op that `declare` puts in its place."""
    OPDEF_TO_LIB.pop(definition._qualname)._destroy()
    OPDEFS.pop(definition._qualname, None)
    op = declare()
    definition._opoverload = op.overload  # type: ignore[attr-defined]  # every subclass has one
    return op


REGISTERED = re.compile(r"^(\w+)(?:\[alias\])?: registered at (.*):\d+ ::", re.MULTILINE)


class Changes:
    """The registrations of this process, as they happen.

    Attributes:
        count: goes up with each one that is made or withdrawn, by any code and for any op.
        lock: held while one is noted; reentrant, since a finalizer may note a change at any moment.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.count = 0
        self._listeners: dict[int, Callable[[], None]] = {}
        self._always: tuple[Callable[[], object], ...] = ()

    def note(self) -> None:
        """Call every listener, after something was registered or withdrawn."""
        with self.lock:
            self.count += 1
            for tell in self._always:
                tell()
            if self._listeners:
                listeners, self._listeners = self._listeners, {}
                for listener in listeners.values():
                    listener()

    def tell_once(self, listener: Callable[[], None]) -> None:
        """Call a bound method at the next change, once, however often it is given."""
        with self.lock:
            self._listeners[id(listener.__self__)] = listener  # type: ignore[attr-defined]  # it is bound

    def tell_always(self, listener: Callable[[], object]) -> None:
        """Call a function at every change from now on."""
        with self.lock:
            self._always += (listener,)

    def renew_lock(self) -> None:
        """Replace the lock in a forked child: a thread of the parent may have held it."""
        self.lock = threading.RLock()
        self.note()


changes = Changes()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=changes.renew_lock)


def foreign_keys(name: str, file: str) -> frozenset[str]:
    """Return the dispatch keys of an op whose kernel other code registered."""
    dump = _C._dispatch_dump(name)
    is_our_own = dump.count(": registered at ") == dump.count(f": registered at {file}:")
    if is_our_own:  # as nearly all ops are, and quickly seen
        return frozenset()
    return frozenset(key for key, where in REGISTERED.findall(dump) if where != file)


def is_own(name: str, file: str, keys: frozenset[str]) -> bool:
    """Return True if `file` surely registered all that the dispatcher would run for an op at some keys."""
    # Native code finds out in a tenth of the time of a dump; until it is loaded, nothing is sure.
    return _is_own is not None and _is_own(name, file, keys)


def ask_native(ask: Callable[[str, str, frozenset[str]], bool]) -> None:
    """Set what answers `is_own`: a function of the native library that was loaded."""
    global _is_own
    _is_own = ask


_is_own: Callable[[str, str, frozenset[str]], bool] | None = None


def names_in(namespace: str) -> list[str]:
    """Return the names of the ops of a namespace, whoever registered them, without the namespace."""
    found = (name.partition(".")[0].partition("::") for name in all_names())
    return sorted({name for space, _, name in found if space == namespace})


def _noting(function: Callable[..., Any]) -> Callable[..., Any]:  # Any: a method of torch's
    """Return the same method, which then counts a change."""

    @functools.wraps(function)
    def call(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(owner, *args, **kwargs)
        finally:
            changes.note()
            if isinstance(owner, torch.library.Library) and not hasattr(owner, COUNTED):
                setattr(owner, COUNTED, True)  # what a Library holds is withdrawn when it dies: another change
                weakref.finalize(owner, changes.note)

    return call


implement_unnoted: Callable[..., None] = torch.library.Library.impl  # for callers that note the change
COUNTED = "_custom_autograd_counts_its_end"
for _owner, _name in (
    (torch.library.Library, "impl"),
    (torch.library.Library, "_destroy"),
    (type(torch.ops), "load_library"),
    (importlib.machinery.ExtensionFileLoader, "create_module"),
):
    setattr(_owner, _name, _noting(getattr(_owner, _name)))


@dataclass(frozen=True, slots=True)
class ParsedValue:
    """One argument or result, as the dispatcher reads it.

    Attributes:
        name: as written, empty where a result has no name.
        type: `Tensor`, `Tensor?[]`, `int`, `ScalarType`, ...
        is_keyword_only: it follows the `*`.
        is_written: its alias annotation carries a `!`.
        alias_set: the letters of its alias annotation.
        has_default: a default is written.
        default: that default, as the parser keeps it: a dtype, a layout and a memory format as its number.
        is_one_tuple: it is a result, in a tuple of one, whose type is `type`.
    """

    name: str
    type: str
    is_keyword_only: bool
    is_written: bool
    alias_set: frozenset[str]
    has_default: bool
    default: Any  # Any: whatever type the argument has
    is_one_tuple: bool = False


def parse_schema(text: str) -> tuple[tuple[ParsedValue, ...], tuple[ParsedValue, ...]]:
    """Parse `name(Tensor x, ...) -> (Tensor, ...)` into arguments and results."""
    parsed = torch._C.parse_schema(text)
    return tuple(map(_read, parsed.arguments)), tuple(map(_read, parsed.returns))


SPELLINGS = {"number": "Scalar", "SymInt": "int"}  # of types that schemas spell otherwise than the parser


def _read(value: Any) -> ParsedValue:  # Any: torch._C.Argument, which has no stub
    written = str(value.real_type)
    inner = re.fullmatch(r"Tuple\[([^,]*)\]", written) if "[" in written else None
    spelling = _spell(inner[1] if inner else written) if "[" in written else SPELLINGS.get(written, written)
    alias = value.alias_info
    has_default = value.has_default_value()
    return ParsedValue(
        name=value.name,
        type=spelling,
        is_keyword_only=value.kwarg_only,
        is_written=alias is not None and alias.is_write,
        alias_set=frozenset() if alias is None else frozenset(alias.before_set),
        has_default=has_default,
        default=value.default_value if has_default else None,
        is_one_tuple=inner is not None,
    )


def _spell(real_type: str) -> str:
    """Return the schema spelling of a type: 'List[Optional[Tensor]]' -> 'Tensor?[]'."""
    if "[" not in real_type:
        return SPELLINGS.get(real_type, real_type)
    if match := re.fullmatch(r"List\[(.*)\]", real_type):
        return f"{_spell(match[1])}[]"
    if match := re.fullmatch(r"Optional\[(.*)\]", real_type):
        return f"{_spell(match[1])}?"
    return real_type


def constant_of(spelling: str, cls: type, value: Any) -> Any:  # Any: a constant, or its number
    """Return a constant, such as a dtype, that the dispatcher may have as a number, as in lists of torch 2.11."""
    return value if isinstance(value, cls) else constants_by_number(spelling, cls)[value]


@functools.cache
def constants_by_number(spelling: str, cls: type) -> dict[int, Any]:  # Any: of the class
    """Return the constants of torch of a class by their numbers in the dispatcher, as its parser reads them."""
    # Constants that have no name in schemas, such as `torch.preserve_format`, are left out.
    numbers: dict[int, Any] = {}
    for name, value in vars(torch).items():
        if isinstance(value, cls):
            try:
                argument = torch._C.parse_schema(f"f({spelling} a={name}) -> ()").arguments[0]
            except RuntimeError:
                continue
            numbers[typing.cast(int, argument.default_value)] = value
    return numbers


def class_name_of(annotation: object) -> str | None:
    """Return the dispatcher's name of a registered class, or None. Every Enum counts as registered."""
    if not isinstance(annotation, type):
        return None
    find = getattr(opaque_object, "_resolve_opaque_type_info", opaque_object._OPAQUE_TYPES.get)
    found = find(annotation)
    return None if found is None else str(found.class_name)
