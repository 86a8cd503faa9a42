"""Compile caches: a changed rule is never served from a cache that was filled before the change.

The on-disk caches of Inductor and AOTAutograd know the graph, not the source of the Python rules it was traced
through (pytorch#144344). So a fingerprint of the rules of each op becomes part of the caches' key. It is made in each
compilation, when the fake of the op first runs there: a rule may read another value than in the one before.

A fingerprint is a number that changes when the schema or a rule of an op changes, or anything that a rule reaches:

rule -> its code, constants, defaults, closure
     -> the global names that it reads: numbers, arrays, texts, containers, functions, classes, objects, modules
            -> of a class, an object or a module: the attributes that the code names, also in a text
            -> of a class: what Python calls without a name, such as `__enter__`
            -> of another op: its schema and rules
            -> of another package: its version; of torch and of Python: the name
op -> the classes of its containers, with all their attributes
call -> the functions that are passed as static arguments

It is not complete: an environment variable, say, or a file that a rule reads while it is traced is not seen.
"""

from __future__ import annotations

import dis
import hashlib
import importlib.util
import itertools
import os
import sys
import typing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache, partial
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import torch

from custom_autograd.core.locations import layers_of, unwrap
from custom_autograd.core.signatures import is_filled, names_in
from custom_autograd.registration.capability import Capability
from custom_autograd.registration.registry import OpRecord, find_record, record_of
from custom_autograd.torch_private.compiler import CacheTag

MOST = 5000
"""Objects that are looked at; a rule that reaches more is taken for another one in each process."""

OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
PLAIN = (bool, int, float, complex, str, bytes, range, Enum, type(None), *OF_TORCH)
CONTAINERS = (list, tuple, deque, set, frozenset, dict, MappingProxyType)
OWN_AND_TORCHS = frozenset({"torch", "custom_autograd", "builtins"}) | sys.stdlib_module_names
_TAG = CacheTag()


class CompileCache(Capability):
    """Keeps torch's cache tag in step with what is registered."""

    name = "compile cache"

    def before_trace(self, record: OpRecord, arguments: Mapping[str, Any]) -> None:
        """Count the rules of the op into the tag, and the functions among the arguments of a call."""
        name = str(record.definition.name)
        if _TAG.is_due(name):
            _TAG.update(name, fingerprint(record))
        for argument in record.declaration.schema.arguments:
            value = arguments[argument.name]
            if argument.to_dispatcher is not None and callable(value):
                call = f"{name}({argument.to_dispatcher(value)})"
                if _TAG.is_due(call):
                    _TAG.update(call, _number_of(value))

    def describe(self, record: OpRecord) -> str:
        """Return how the op is distinguished from its earlier versions."""
        return f"derived from the source of its rules ({fingerprint(record):016x})"


def fingerprint(record: OpRecord) -> int:
    """Return 64 bits of the schema and of everything that tracing runs: fake, reference, gradient and jvp rules."""
    reader = Reader()
    reader.read_op(record)
    return reader.number()


def _number_of(value: Any) -> int:  # Any: a function or class
    """Return the same of a function, or of a class and all its attributes."""
    reader = Reader()
    reader.read(value, frozenset(dir(value) if isinstance(value, type) else ()), "")
    return reader.number()


class Reader:
    """Reads everything that the rules of an op reach, each object once."""

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=8)
        self._seen: set[tuple[int, frozenset[str]]] = set()
        self._kept: list[object] = []  # what is seen stays alive, so that no other object gets its id

    def number(self) -> int:
        """Return 64 bits of what was read."""
        return int.from_bytes(self.digest.digest(), "big")

    def read_op(self, record: OpRecord) -> None:
        """Read the schema and the rules of an op."""
        if not self._is_new(record):
            return
        schema = record.declaration.schema
        self._add(schema.text)
        self._add(str([(one.name, one.is_differentiable, one.alias_of, one.is_view) for one in schema.outputs]))
        self._add(str([one.name for one in schema.arguments if one.is_differentiable]))
        for rule in sorted(record.registrations.all(), key=lambda rule: rule.title):
            self._add(rule.title)
            self._add(rule.settings)
            for function in rule.functions:
                self.read(function, frozenset(), "")
        if record.declaration.tree is not None:
            for cls in _classes_in(getattr(record.declaration.function, "__wrapped__", None), set()):
                self.read(cls, frozenset(dir(cls)), "")
        inlined = [kernel.given for kernel in record.kernels.all() if kernel.is_inlined]
        for traced in (record.reference(), *inlined):
            if traced is not None:
                self.read(traced, frozenset(), "")

    def read(self, value: Any, names: frozenset[str], package: str) -> None:  # Any: whatever a rule reads
        """Read what a rule reaches."""
        record = record_of(value) or _record_of_overload(value)
        if record is not None:
            self.read_op(record)
        elif is_plain(value):
            self._add(repr(value))
        elif self._is_new(value, names):
            self._add(_name_of(value))
            self._read_parts(value, names, package)

    def _read_parts(self, value: Any, names: frozenset[str], package: str) -> None:
        if isinstance(value, CONTAINERS):
            for item in _items(value):
                self.read(item, names, package)
        elif isinstance(value, (partial, MethodType, staticmethod, classmethod, property, FunctionType)):
            self._read_function(value, names, package)
        elif isinstance(value, ModuleType):
            self._read_module(value, names, package)
        elif isinstance(value, type):
            self._read_class(value, names, package)
        else:
            self._read_instance(value, names, package)

    def _read_function(self, value: Any, names: frozenset[str], package: str) -> None:
        for bound in _bound(value):
            self.read(bound, names, package)
        if isinstance(value, property):
            self.read(value.fget, names, package)
            return
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        for plain in layers_of(value):  # a decorator's function, and what it wraps
            code = getattr(plain, "__code__", None)
            own = _package_of(plain)
            if code is None or self._is_foreign(own, package):
                continue
            self._read_code(plain, code, own or package)
            if isinstance(value, MethodType):
                self.read(value.__self__, _names_in(code), own or package)

    def _read_code(self, function: Any, code: CodeType, package: str) -> None:
        if not self._is_new(code):
            return
        for piece in _pieces(code):
            self.digest.update(piece)
        names = _names_in(code)
        for value in _referenced(function, names):
            self.read(value, names, package)
        for name in _imports_in(code):
            self._read_import(name, names, package)

    def _read_import(self, name: str, names: frozenset[str], package: str) -> None:
        """Read a module that code imports when it runs, or its file if it has not run yet."""
        if self._is_foreign(_root_of(name), package):
            return
        module = sys.modules.get(name)
        if module is not None:
            self._read_module(module, names, package)
            return
        try:
            spec = importlib.util.find_spec(name)
            self._add(_this_process() if spec is None or spec.origin is None else Path(spec.origin).read_text("utf-8"))
        except (ImportError, OSError, ValueError):
            self._add(_this_process())

    def _read_module(self, module: ModuleType, names: frozenset[str], package: str) -> None:
        """Read the attributes that code names; of torch, the ops that it names."""
        if module.__name__ == "torch":
            self._read_attributes(vars(module), names & {"ops"}, names, package)
        elif module.__name__.startswith("torch.ops") or not self._is_foreign(_root_of(module.__name__), package):
            self._read_attributes(vars(module), names, names, _root_of(module.__name__))

    def _read_class(self, cls: type, names: frozenset[str], package: str) -> None:
        own = _package_of(cls)
        if self._is_foreign(own, package):
            return
        for base in cls.__mro__[:-1]:
            unnamed = {name for name, value in vars(base).items() if name.startswith("__") and callable(value)}
            self._read_attributes(vars(base), names | unnamed, names, own)
        self._read_class(type(cls), names, package)

    def _read_instance(self, value: Any, names: frozenset[str], package: str) -> None:
        if _package_of(type(value)) == "triton" and hasattr(value, "fn"):  # made by triton.jit or triton.autotune
            self.read(value.fn, names, package)
            self._add(" ".join(map(str, getattr(value, "configs", ()))))
        plain: Any = unwrap(value) if callable(value) or hasattr(type(value), "__wrapped__") else value
        if isinstance(plain, FunctionType):
            self.read(plain, names, package)
            names |= _names_in(plain.__code__)
        self._read_class(type(value), names, package)
        self._read_attributes(_attributes_of(value, names), names, names, package)
        self.digest.update(_memory_of(value))

    def _read_attributes(self, found: Any, wanted: frozenset[str], names: frozenset[str], package: str) -> None:
        for name in sorted(wanted & found.keys()):
            self._add(name)
            self.read(found[name], names, package)

    def _is_foreign(self, own: str, package: str) -> bool:
        """Return True for what belongs to another package, whose version says it all if it has one."""
        if own in OWN_AND_TORCHS:
            return True
        version = getattr(sys.modules.get(own), "__version__", None)
        if version is None or own in ("", package) or not package:
            return False
        self._add(f"{own} {version}")
        return True

    def _is_new(self, value: object, names: frozenset[str] = frozenset()) -> bool:
        """Return True if a value has not been read for these names."""
        if (id(value), names) in self._seen:
            return False
        self._seen.add((id(value), names))
        self._kept.append(value)
        if len(self._kept) == MOST:
            self._add(_this_process())
        return len(self._kept) < MOST

    def _add(self, text: str) -> None:
        self.digest.update(text.encode(errors="surrogatepass"))


def is_plain(value: Any) -> bool:  # Any: whatever a rule reads
    """Return True if the repr says all there is: a number or text, or a container of such."""
    if isinstance(value, (list, tuple)):
        return all(is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(is_plain(item) for row in value.items() for item in row)
    return isinstance(value, PLAIN)


def _classes_in(annotated: Any, seen: set[type]) -> Iterator[type]:  # Any: a function, a class or an annotation
    """Yield the classes that annotations name, and those of their fields."""
    found = list(typing.get_args(annotated))
    if isinstance(annotated, type) and annotated not in seen and _package_of(annotated) not in OWN_AND_TORCHS:
        seen.add(annotated)
        yield annotated
    if isinstance(annotated, FunctionType) or annotated in seen:
        try:
            found = list(typing.get_type_hints(annotated).values())
        except (NameError, TypeError):
            found = []
    for one in found:
        if one not in seen:
            yield from _classes_in(one, seen)


def _name_of(value: Any) -> str:  # Any: as above
    """Return the name of a function or class of torch or Python, whose code is not read; empty for other values."""
    is_named = _package_of(value) in OWN_AND_TORCHS or isinstance(value, BuiltinFunctionType)
    return str(getattr(value, "__qualname__", None) or getattr(value, "__name__", "")) if is_named else ""


@cache
def _this_process() -> str:
    """Return a text of this process, drawn when it is first needed; children that fork later have the same."""
    return os.urandom(8).hex()


def _items(container: Any) -> Iterable[Any]:
    """Return what a container holds, in an order that is the same in every process."""
    if isinstance(container, (dict, MappingProxyType)):
        return itertools.chain.from_iterable(container.items())
    return sorted(container, key=repr) if isinstance(container, (set, frozenset)) else container


def _attributes_of(value: Any, names: Iterable[str]) -> dict[str, Any]:  # Any: as above
    """Return the attributes of an object itself, by name; those in slots only if they are named."""
    slots = [name for name in names if isinstance(getattr(type(value), name, None), MemberDescriptorType)]
    return {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})


def _memory_of(value: Any) -> bytes:  # Any: as above
    """Return the contents of an array of numbers; nothing for other objects."""
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):
        return b""
    return f"{view.format} {view.shape}".encode() + view.tobytes()


def _record_of_overload(value: Any) -> OpRecord | None:
    """Return the op of what `torch.ops` gives, if it is one of ours."""
    name = getattr(value, "_qualified_op_name", None) or getattr(value, "_name", None)
    is_of_torch = type(value).__module__ == "torch._ops"
    return find_record(name.removesuffix(".default")) if is_of_torch and isinstance(name, str) else None


def _package_of(value: Any) -> str:
    return _root_of(getattr(value, "__module__", None) or "")


def _root_of(module: str) -> str:
    return module.partition(".")[0]


def _pieces(code: CodeType) -> Iterator[bytes]:
    """Yield what a function does, without its location."""
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars)).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _pieces(constant)
        else:
            yield repr(list(_items(constant)) if isinstance(constant, frozenset) else constant).encode()


def _names_in(code: CodeType) -> frozenset[str]:
    """Return the names that code uses, and its texts, which may be names that it gives to getattr."""
    texts = [piece for piece in code.co_consts if isinstance(piece, str)]
    inner = [_names_in(piece) for piece in code.co_consts if isinstance(piece, CodeType)]
    return names_in(code).union(texts, *inner)


def _imports_in(code: CodeType) -> list[str]:
    """Return the absolute names of the modules that code imports."""
    found = {str(one.argval) for one in dis.get_instructions(code) if one.opname == "IMPORT_NAME"}
    return sorted(name for name in found if name)


def _referenced(function: Any, names: frozenset[str]) -> Iterator[Any]:
    """Yield the values of a function's global names, closure and defaults."""
    scope = getattr(function, "__globals__", {})
    yield from (scope[name] for name in sorted(names) if name in scope)
    yield from (cell.cell_contents for cell in getattr(function, "__closure__", None) or () if is_filled(cell))
    yield from getattr(function, "__defaults__", None) or ()
    yield from (getattr(function, "__kwdefaults__", None) or {}).values()


def _bound(function: Callable[..., Any]) -> Iterator[Any]:
    """Yield the arguments that functools.partial bound."""
    while isinstance(function, partial):
        yield from (*function.args, *function.keywords.values())
        function = function.func
