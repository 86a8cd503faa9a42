"""The state outside of a function that it reaches, and whether it has changed: what a side effect shows in.

Reached are globals, cells of closures, default arguments, bound objects, and attributes that the code names of these;
also those of the functions of its own package that it names. Containers are compared item by item, tensors and arrays
by identity, contents and gradient, modules by parameters and buffers, generators by their state, numbers and text by
value, everything else by identity.
"""

import collections
import dis
import functools
import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.locations import layers_of, unwrap
from custom_autograd.core.signatures import is_filled, names_in
from custom_autograd.registration.registry import record_of

State = dict[tuple[str, str], object]
"""By the module of the code and the name by which that reaches it, a copy of what it holds."""

MOST = 2000
"""Values that are looked at for one function, and items of one container."""

DEEPEST = 3
"""How deep containers are looked into."""

NOT_AUTHORS = ("torch", "custom_autograd")
PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.Size, torch.dtype, torch.device)
CONTAINERS = (list, tuple, dict, set, frozenset, bytearray, collections.deque)
COUNTERS = (itertools.count,)
OTHERS = (torch.nn.Module, torch.Generator, MutableMapping)
PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
HOLDERS = (SimpleNamespace, threading.local, queue.Queue)


def state_of(functions: Iterable[Callable[..., Any]]) -> State:  # Any: of any signature
    """Return a copy of the state that functions reach."""
    walk = Walk()
    for function in functions:
        walk.read_function(function, _root_of(unwrap(function)))
    return walk.state


def changes_in(before: State, after: State) -> list[str]:
    """Return the names of what differs, in order."""
    changed = (key for key, value in after.items() if key not in before or not _is_same(before[key], value))
    return list(dict.fromkeys(name for _, name in changed))


class Walk:
    """Copies the state that functions reach.

    Attributes:
        state: what was found.
    """

    def __init__(self) -> None:
        self.state: State = {}
        self._module = ""
        self._seen: dict[tuple[int, frozenset[str]], object] = {}  # holds the objects, so that ids stay theirs

    def read_function(self, function: Any, package: str) -> None:  # Any: a callable of any kind
        """Read what a callable reaches, if it is of a package of the author's."""
        for layer in layers_of(function):
            if isinstance(layer, functools.partial):
                self._read_all(((f"argument {i}", row) for i, row in enumerate(layer.args)), frozenset(), package)
                self._read_all(layer.keywords.items(), frozenset(), package)
            elif isinstance(layer, MethodType):
                self._read("self", layer.__self__, names_in(layer.__func__.__code__), package)
            elif isinstance(layer, FunctionType):
                self._read_code(layer, package)
            elif not isinstance(layer, type):
                names = names_in(getattr(type(layer).__call__, "__code__", None))
                self._read("self", layer, names, package)

    def _read_code(self, function: FunctionType, package: str) -> None:
        if _root_of(function) != package or not self._is_new(function.__code__, frozenset()):
            return
        outer, self._module = self._module, function.__module__
        names, scope, used = names_in(function.__code__), function.__globals__, _globals_in(function.__code__)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._read_all(((name, scope[name]) for name in sorted(used) if name in scope), names, package)
        self._read_attributes(function.__name__, vars(function), frozenset(vars(function)), package)
        self._read_all(((name, cell.cell_contents) for name, cell in cells if is_filled(cell)), names, package)
        self._read_all(_defaults_of(function), names, package)
        self._module = outer

    def _read_all(self, rows: Iterable[tuple[str, Any]], names: frozenset[str], package: str) -> None:
        for name, value in rows:
            self._read(name, value, names, package)

    def _read(self, name: str, value: Any, names: frozenset[str], package: str) -> None:  # Any: of any type
        """Read a value under the name that code has for it; `names` are the attributes that the code names."""
        if record_of(value) is not None:  # an op has rules of its own
            return
        if _is_state(value):
            self.state[self._module, name] = _copy(value)
        elif not self._is_new(value, names):
            return
        elif isinstance(value, (FunctionType, MethodType, functools.partial)):
            self.read_function(value, package)
        elif isinstance(value, (ModuleType, type)):
            if _root_of(value) == package:
                self._read_attributes(name, vars(value), names, package)
        elif isinstance(value, HOLDERS) or _root_of(type(value)) == package:
            if callable(value):
                self.read_function(value, package)
            own = {**getattr(value, "__dict__", {}), **_slots_of(value)}
            self._read_attributes(name, own, names.union(own), package)  # its methods need not name what they change
            self._read_attributes(name, vars(type(value)), names, package)

    def _read_attributes(self, owner: str, found: Mapping[str, Any], names: frozenset[str], package: str) -> None:
        rows = ((f"{owner}.{name}", found[name]) for name in sorted(names) if name in found)
        self._read_all(list(rows), names, package)

    def _is_new(self, value: object, names: frozenset[str]) -> bool:
        """Return True if a value has not been read for these names."""
        if (id(value), names) in self._seen or len(self._seen) >= MOST:
            return False
        self._seen[id(value), names] = value
        return True


def _is_state(value: object) -> bool:
    """Return True for what is compared with itself at another time."""
    return isinstance(value, (*CONTAINERS, *PLAIN, *COUNTERS, *OTHERS, Tensor)) or _is_array(value)


def _slots_of(value: object) -> dict[str, Any]:  # Any: of any type
    names = (name for cls in type(value).__mro__ for name in vars(cls).get("__slots__", ()))
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _is_array(value: object) -> bool:
    """Return True for an array of NumPy, which need not be installed."""
    return type(value).__module__.partition(".")[0] == "numpy" and type(value).__name__ in ("ndarray", "Generator")


def _copy(value: Any, depth: int = 0) -> object:  # Any: of any type
    """Return what a value holds now: containers and memory are copied, everything else is held."""
    text = _text_of(value)
    if text is not None:
        return text
    if isinstance(value, Tensor):
        contents = value.detach().clone() if type(value) in PLAIN_TENSORS and value.numel() <= MOST else None
        return [Contents(value, contents), _copy(value.grad) if value.is_leaf else None]
    if isinstance(value, torch.nn.Module):
        return _copy([*value.named_parameters(), *value.named_buffers()], depth - 1)
    if _is_array(value):
        return Contents(value, value.copy() if value.size <= MOST else None)
    if depth > DEEPEST or not isinstance(value, (*CONTAINERS, MutableMapping)):
        return value
    if len(value) > MOST:
        return len(value)
    if isinstance(value, (dict, MutableMapping)):
        return {key: _copy(item, depth + 1) for key, item in list(value.items())}
    if isinstance(value, (set, frozenset)):
        return frozenset(value)
    return [_copy(item, depth + 1) for item in value]


def _text_of(value: Any) -> str | None:  # Any: as above
    """Return the state of a counter or of a generator of random numbers, or None for anything else."""
    if isinstance(value, COUNTERS):
        return repr(value)
    if isinstance(value, torch.Generator):
        return str(value.get_state().tolist())
    return repr(value.bit_generator.state) if hasattr(type(value), "bit_generator") else None


class Contents:
    """A tensor or an array, and a copy of its contents if it is small."""

    __slots__ = ("copy", "owner")

    def __init__(self, owner: object, copy: Any) -> None:  # Any: a tensor, an array or None
        self.owner = owner
        self.copy = copy


def _is_same(one: Any, other: Any) -> bool:  # Any: what `_copy` returned
    """Return True if two copies are of the same state."""
    if isinstance(one, Contents) and isinstance(other, Contents):
        return one.owner is other.owner and _has_same_contents(one.copy, other.copy)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, (*PLAIN, frozenset)):
        return bool(one == other) or one != one
    return one is other


def _has_same_contents(one: Any, other: Any) -> bool:  # Any: as in `Contents`
    if one is None or other is None:
        return one is other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _globals_in(code: CodeType) -> frozenset[str]:
    """Return the names of globals that code uses, with the functions within it."""
    inner = (_globals_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    own = (str(one.argval) for one in dis.get_instructions(code) if one.opname.endswith(("_GLOBAL", "_NAME")))
    return frozenset(own).union(*inner)


def _defaults_of(function: FunctionType) -> Iterator[tuple[str, Any]]:  # Any: of any type
    """Yield the parameters with a default, and the default."""
    defaults = function.__defaults__ or ()
    positional = function.__code__.co_varnames[: function.__code__.co_argcount]
    yield from zip(positional[len(positional) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _root_of(value: Any) -> str:  # Any: a function, a class or a module
    """Return the top-level package that a value is of; none for what is not an author's."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    root = str(name or "").partition(".")[0]
    return "" if root in NOT_AUTHORS else root
