"""The parts of a value that a rule reaches, as capabilities/compile_cache.py reads them."""

from __future__ import annotations

import contextlib
import copyreg
import ctypes
import dis
import itertools
import os
import threading
import typing
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from enum import Enum
from functools import lru_cache, partial
from types import (
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
)
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.locations import unwrap
from custom_autograd.core.signatures import is_filled, names_in

PLAIN = (bool, int, float, complex, str, bytes, range, slice, type(None))
OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo)
CONTAINERS = (list, tuple, deque, set, frozenset, dict, MappingProxyType)
FUNCTIONS = (partial, MethodType, staticmethod, classmethod, property, FunctionType)
IN_THE_OBJECT = (MemberDescriptorType, GetSetDescriptorType)
"""Attributes in slots, and those of classes in C."""
WITHOUT_VALUE = (type(threading.Lock()), type(threading.RLock()), *IN_THE_OBJECT)
OF_ALL_ATTRIBUTES = frozenset({"__dict__", "vars", "asdict", "astuple"})
"""Words of code that reads the attributes of objects without naming them."""
OP_OF_LIBRARY = torch.library.CustomOpDef  # type: ignore[attr-defined]  # torch does not export it to type checkers
STATELESS = ("builtins", "typing", "abc", "enum")
"""Modules with classes whose methods read no attributes that the code of others has set."""
MOST_BYTES = 1 << 24


def is_plain(value: Any) -> bool:  # Any: whatever a rule reads
    """Return True if the repr says all there is: a number or text, or a container of such."""
    if type(value) in (list, tuple):
        return all(is_plain(item) for item in value)
    if type(value) is dict:
        return all(is_plain(item) for row in value.items() for item in row)
    return type(value) in PLAIN or isinstance(value, OF_TORCH)


def items_of(container: Iterable[Any]) -> Iterable[Any]:
    """Return what a container holds, in an order that is the same in every process."""
    if isinstance(container, (dict, MappingProxyType)):
        return itertools.chain.from_iterable(container.items())
    return sorted(container, key=repr) if isinstance(container, (set, frozenset)) else container


def attributes_of(value: Any, names: frozenset[str]) -> dict[str, Any]:  # Any: as above
    """Return the attributes of an object itself that are named, by name; all of them if code reads them as a dict."""
    found = dict(getattr(value, "__dict__", {}))
    for name in names:
        if isinstance(getattr(type(value), name, None), IN_THE_OBJECT):
            with contextlib.suppress(Exception):  # it is not set, or code in C raises whatever it likes
                found[name] = getattr(value, name)
    if isinstance(value, torch.nn.Module):
        for held in ("_parameters", "_buffers", "_modules"):
            found |= found.get(held, {})
    if not OF_ALL_ATTRIBUTES.isdisjoint(names):
        return found
    return {name: found[name] for name in found.keys() & names}


def wrapped_by(value: Any) -> FunctionType | None:  # Any: as above
    """Return the function that an object wraps; None if the object's own class says what a call of it does."""
    if not callable(value) and not hasattr(type(value), "__wrapped__"):
        return None
    plain: Any = unwrap(value)
    is_own = callable(value) and plain is unwrap(type(value).__call__)
    return plain if isinstance(plain, FunctionType) and not is_own else None


def overridden_in(cls: type, bases: Iterable[type]) -> set[str]:
    """Return the names of what a class defines again of others, which their code may call."""
    known = {name for base in bases for name in dir(base) if not name.startswith("__")}
    return {name for name in vars(cls).keys() & known if not name.startswith("_") or callable(vars(cls)[name])}


def state_of(value: Any) -> Iterable[Any] | None:  # Any: as above
    """Return what determines an object of torch, of Python or of another package; None if that cannot be read."""
    if isinstance(value, WITHOUT_VALUE):
        return ()
    if isinstance(value, ContextVar):
        with contextlib.suppress(LookupError):
            return (value.get(),)
        return ()
    if isinstance(value, CodeType):
        return (bytes_of(value),)
    if isinstance(value, weakref.ref):
        return (value(),)
    if isinstance(value, Tensor):
        return _state_of_tensor(value)
    if isinstance(value, (Enum, OP_OF_LIBRARY)):
        return (repr(value),)
    if isinstance(value, torch.nn.Module):
        return type(value), vars(value)
    reduce = copyreg.dispatch_table.get(type(value)) or (lambda value: value.__reduce_ex__(4))
    try:
        reduced = reduce(value)
        if isinstance(reduced, str):
            return (reduced,)
        of_items = [list(items) for items in reduced[3:5] if items is not None]
        return (*reduced[:3], *of_items)
    except Exception:  # noqa: BLE001 - it cannot be pickled, and says so in whatever way
        return None


def _state_of_tensor(value: Tensor) -> Iterable[Any] | None:
    """Return the same of a tensor; its numbers are read from memory, since a mode that traces would take any call."""
    if type(value) not in (Tensor, torch.nn.Parameter) or value.layout != torch.strided or value.device.type != "cpu":
        return None
    storage = value.untyped_storage()
    if storage.nbytes() > MOST_BYTES:
        return None
    numbers = ctypes.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b""
    return value.dtype, (*value.shape, *value.stride(), value.storage_offset()), numbers


def memory_of(value: Any) -> bytes:  # Any: as above
    """Return the contents of an array of numbers; nothing for other objects."""
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):
        return b""
    return b"" if "O" in view.format else f"{view.format} {view.shape}".encode() + view.tobytes()


def classes_in(annotated: Any, seen: set[type], ignored: frozenset[str]) -> Iterator[type]:  # Any: has annotations
    """Yield the classes that annotations name, and those of their fields, but for those of some packages."""
    found = list(typing.get_args(annotated))
    if isinstance(annotated, type) and annotated not in seen and package_of(annotated) not in ignored:
        seen.add(annotated)
        yield annotated
    if isinstance(annotated, FunctionType) or annotated in seen:
        try:
            found = list(typing.get_type_hints(annotated).values())
        except (NameError, TypeError):
            found = []
    for one in found:
        if one not in seen:
            yield from classes_in(one, seen, ignored)


def package_of(value: Any) -> str:  # Any: as above
    """Return the package that a function, a class or the class of an object is in."""
    module = getattr(value, "__module__", None)
    return root_of(module) if isinstance(module, str) else ""


def root_of(module: str) -> str:
    """Return the package of a module, by its name."""
    return module.partition(".")[0]


@lru_cache(2048)
def bytes_of(code: CodeType) -> bytes:
    """Return what a function does, without its location."""
    found = [code.co_code, repr((code.co_names, code.co_varnames, code.co_freevars)).encode()]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found.append(bytes_of(constant))
        else:
            found.append(repr(list(items_of(constant)) if isinstance(constant, frozenset) else constant).encode())
    return b"".join(found)


@lru_cache(2048)
def words_in(code: CodeType) -> frozenset[str]:
    """Return the names that code uses, and its texts, which may be names that it gives to getattr."""
    texts = [piece for piece in code.co_consts if isinstance(piece, str)]
    inner = [words_in(piece) for piece in code.co_consts if isinstance(piece, CodeType)]
    return names_in(code).union(texts, *inner)


@lru_cache(2048)
def imports_in(code: CodeType) -> list[str]:
    """Return the absolute names of the modules that code imports."""
    found = {str(one.argval) for one in dis.get_instructions(code) if one.opname == "IMPORT_NAME"}
    return sorted(name for name in found if name)


def referenced(function: Any, names: frozenset[str]) -> Iterator[Any]:  # Any: as above
    """Yield the values of a function's global names, closure and defaults."""
    scope = getattr(function, "__globals__", {})
    yield from (scope[name] for name in sorted(names) if name in scope)
    yield from (cell.cell_contents for cell in getattr(function, "__closure__", None) or () if is_filled(cell))
    yield from getattr(function, "__defaults__", None) or ()
    yield from (getattr(function, "__kwdefaults__", None) or {}).values()


def bound_by(function: Callable[..., Any]) -> Iterator[Any]:
    """Yield the arguments that functools.partial bound, and the object that a method is bound to."""
    while isinstance(function, partial):
        yield from (*function.args, *function.keywords.values())
        function = function.func
    owner = getattr(function, "__self__", None)
    # A function of a module in C has an owner, too: the module, and of torch an object without a state. The `apply` of
    # a Function is one of C from torch 2.15 on, and its owner the class.
    is_value = isinstance(owner, (type, Tensor, *CONTAINERS, *PLAIN)) or memory_of(owner)
    if owner is not None and (isinstance(function, MethodType) or is_value):
        yield owner


def environment_in(words: frozenset[str]) -> str:
    """Return the environment variables that code names, if it reads any."""
    if words.isdisjoint(("environ", "environb", "getenv")):
        return ""
    return repr([(word, os.environ[word]) for word in sorted(words) if word in os.environ])
