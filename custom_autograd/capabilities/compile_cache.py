"""Compile caches: a changed rule is never served from a cache that was filled before the change.

The on-disk caches of Inductor and AOTAutograd know the graph, not the source of the Python rules it was traced
through (pytorch#144344). So a fingerprint of the rules of each op becomes part of the caches' key. It is made in each
compilation, when the fake of the op first runs there: a rule may read another value than in the one before.

A fingerprint is a number that changes when the schema or a rule of an op changes, or anything that a rule reaches:

rule -> its code, constants, defaults, closure
     -> the global names that it reads: numbers, arrays, texts, containers, functions, classes, objects, modules
            -> of a class, an object or a module: the attributes that any of the code names, also in a text
            -> of a class: what Python calls without a name, such as `__enter__`, and what it overrides of a class of
               torch, of Python or of another package, such as the `forward` of a module
            -> of another op: its schema and rules
            -> of another package: its version; of torch and of Python: the name
            -> of an object whose class is in another package, torch or Python: what pickle would keep of it
            -> of an object whose class is derived from one there: all its attributes
     -> the environment variables that it names
op -> the classes of its containers, with all their attributes
   -> if graphs hold a kernel of it: those that are inlined, and what decides which one runs
call -> the functions that are passed as static arguments

What cannot be read, such as a generator, gives another number in each process. What is not seen at all: a file, say,
that a rule reads while it is traced.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from torch import Tensor, nn

from custom_autograd.core.errors import KernelError
from custom_autograd.core.locations import layers_of
from custom_autograd.core.read_values import (
    CONTAINERS,
    FUNCTIONS,
    OF_ALL_ATTRIBUTES,
    PLAIN,
    STATELESS,
    attributes_of,
    bound_by,
    bytes_of,
    classes_in,
    environment_in,
    imports_in,
    is_plain,
    items_of,
    memory_of,
    overridden_in,
    package_of,
    referenced,
    root_of,
    state_of,
    words_in,
    wrapped_by,
)
from custom_autograd.kernels.launches import is_interpreted
from custom_autograd.registration.capability import Capability
from custom_autograd.registration.kernel import Kernel
from custom_autograd.registration.registry import OpRecord, find_record, record_of
from custom_autograd.torch_private.compiler import CacheTag

MOST = 5000
"""Objects that are looked at; a rule that reaches more is taken for another one in each process."""

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
    return read_rules(record).number()


def read_rules(record: OpRecord) -> Reader:
    """Return what has read an op: its schema and rules, and all that they reach."""
    return _read_whole(lambda reader: reader.read_op(record))


def _number_of(value: Any) -> int:  # Any: a function or class
    """Return the same of a function, or of a class and all its attributes."""
    return _read_whole(lambda reader: reader.read_all_of(value)).number()


def _read_whole(read: Callable[[Reader], None]) -> Reader:
    """Read with all names that any of the code has: a rule may pass an object to a function that reads attributes."""
    reader = Reader(frozenset())
    read(reader)
    while not reader.words <= reader.names:
        reader = Reader(reader.words)
        read(reader)
    return reader


class Reader:
    """Reads everything that the rules of an op reach, each object once.

    Args:
        names: the attributes that are read of classes, objects and modules.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self.names = self.words = names
        self.digest = hashlib.blake2b(digest_size=8)
        self.unread: list[str] = []
        self._seen: dict[int, object] = {}  # what is seen stays alive, so that no other object gets its id

    def number(self) -> int:
        """Return 64 bits of what was read."""
        digest = self.digest.copy()
        digest.update(environment_in(self.words).encode(errors="surrogatepass"))
        return int.from_bytes(digest.digest(), "big")

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
                self.read(function, "")
        if record.declaration.tree is not None:
            declared = getattr(record.declaration.function, "__wrapped__", None)
            for cls in classes_in(declared, set(), OWN_AND_TORCHS):
                self.read_all_of(cls)
        reference = record.reference()
        if reference is not None:
            self.read(reference, "")
        if record.kernels.is_inlined:
            self._add(str(is_interpreted()))
            for device_type in sorted(record.kernels, key=str):
                self._read_kernels(record, device_type)

    def _read_kernels(self, record: OpRecord, device_type: str | None) -> None:
        """Read the kernels of a device type as they are tried now, one of which a graph holds in place of the op."""
        tried: Sequence[Kernel] = ()
        with suppress(KernelError):  # what is insisted on is a kernel of another device type: the call raises, too
            tried = record.kernels.candidates(device_type)
        for kernel in tried:
            self._add(f"{device_type} {kernel.title} {kernel.layouts} {kernel.is_inlined}")
            if kernel.when is not None:
                self.read(kernel.when.function, "")
            if kernel.is_inlined:
                self.read(kernel.given, "")

    def read_all_of(self, value: Any) -> None:  # Any: as below
        """Read a function, or a class with all its attributes."""
        if isinstance(value, type):
            self.words |= frozenset(dir(value))
        self.read(value, "")

    def read(self, value: Any, package: str) -> None:  # Any: whatever a rule reads
        """Read what a rule reaches."""
        record = record_of(value) or _record_of_overload(value)
        if record is not None:
            self.read_op(record)
        elif is_plain(value):
            self._add(repr(value))
        elif self._is_new(value):
            self._add(_name_of(value))
            self._read_parts(value, package)

    def _read_parts(self, value: Any, package: str) -> None:
        if isinstance(value, FUNCTIONS):
            self._read_function(value, package)
        elif isinstance(value, BuiltinFunctionType):
            self._read_items(bound_by(value), package)
        elif isinstance(value, ModuleType):
            self._read_module(value, package)
        elif isinstance(value, type):
            self._read_class(value, package)
        elif type(value) in CONTAINERS:
            self._read_items(value, package)
        elif not _name_of(value):
            self._read_instance(value, package)

    def _read_items(self, found: Iterable[Any], package: str) -> None:
        for item in items_of(found):
            self.read(item, package)

    def _read_function(self, value: Any, package: str) -> None:
        self._read_items(bound_by(value), package)
        if isinstance(value, property):
            self.read(value.fget, package)
            return
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        for plain in layers_of(value):  # a decorator's function, and what it wraps
            code = getattr(plain, "__code__", None)
            own = package_of(plain)
            if code is None:
                continue
            if self._is_foreign(own, package):
                self._add(plain.__qualname__)
                continue
            self._read_code(plain, code, own or package)
            if isinstance(plain, FunctionType):
                self._read_named(vars(plain), self.names | {"registry"}, own)  # that of functools.singledispatch

    def _read_code(self, function: Any, code: CodeType, package: str) -> None:
        if not self._is_new(code):
            return
        self.digest.update(bytes_of(code))
        words = words_in(code)
        self.words |= words
        self._read_items(referenced(function, words), package)
        for name in imports_in(code):
            self._read_import(name, package)

    def _read_import(self, name: str, package: str) -> None:
        """Read a module that code imports when it runs, or its file if it has not run yet."""
        if self._is_foreign(root_of(name), package):
            return
        module = sys.modules.get(name)
        if module is not None:
            self._read_module(module, package)
            return
        try:
            spec = importlib.util.find_spec(name)
            self._add(_this_process() if spec is None or spec.origin is None else Path(spec.origin).read_text("utf-8"))
        except (ImportError, OSError, ValueError):
            self._add(_this_process())

    def _read_module(self, module: ModuleType, package: str) -> None:
        """Read the attributes that code names; of torch, the ops that it names."""
        if module.__name__ == "torch":
            self._read_named(vars(module), self.names & {"ops"}, package)
        elif module.__name__.startswith("torch.ops") or not self._is_foreign(root_of(module.__name__), package):
            self._read_named(vars(module), self.names, root_of(module.__name__))

    def _read_class(self, cls: type, package: str) -> None:
        own = package_of(cls)
        if self._is_foreign(own, package):
            self._add(cls.__qualname__)
            return
        foreign = self._foreign_bases(cls)
        for base in cls.__mro__:
            if self._is_foreign(package_of(base), own):
                continue
            unnamed = {name for name, value in vars(base).items() if name.startswith("__") and callable(value)}
            self._read_named(vars(base), self.names | unnamed | overridden_in(base, foreign), own)
        self._read_class(type(cls), package)

    def _read_instance(self, value: Any, package: str) -> None:  # Any: as above
        own = package_of(type(value))
        jitted = getattr(value, "fn", None) if own == "triton" else None  # made by triton.jit or triton.autotune
        wrapped = wrapped_by(value)
        if jitted is not None:
            self.read(jitted, package)
            self._read_items((getattr(value, "configs", ()), getattr(value, "values", ())), package)
        elif wrapped is not None:
            self.read(wrapped, package)
        elif memory := memory_of(value):
            self.digest.update(memory)
        elif self._is_foreign(own, package):
            self._read_state(value, package)
            return
        elif isinstance(value, CONTAINERS):
            self._read_items(value, package)
        elif isinstance(value, (*PLAIN, Enum)):
            self._add(repr(value))
        self._read_class(type(value), package)
        reads_all = any(base is not nn.Module for base in self._foreign_bases(type(value)))
        names = self.names | OF_ALL_ATTRIBUTES if reads_all else self.names
        self._read_attributes(attributes_of(value, names), package)

    def _read_state(self, value: Any, package: str) -> None:
        """Read an object whose class is not read, since it is of torch, of Python or of another package."""
        state = state_of(value)
        if state is not None:
            self._read_items(state, package)
        elif hasattr(value, "__dict__") and not isinstance(value, Tensor):
            self._read_attributes(attributes_of(value, self.names), package)
        else:
            self.unread.append(f"a {type(value).__name__}")
            self._add(_this_process())

    def _read_named(self, found: Mapping[str, Any], names: frozenset[str], package: str) -> None:
        self._read_attributes({name: found[name] for name in found.keys() & names}, package)

    def _read_attributes(self, found: Mapping[str, Any], package: str) -> None:
        for name in sorted(found):
            self._add(name)
            self.read(found[name], package)

    def _foreign_bases(self, cls: type) -> list[type]:
        """Return the bases of a class that are of torch, of Python or of another package, and may read attributes."""
        own = package_of(cls)
        found = [base for base in cls.__mro__ if base.__module__ not in STATELESS]
        return [base for base in found if self._is_foreign(package_of(base), own)]

    def _is_foreign(self, own: str, package: str) -> bool:
        """Return True for what belongs to another package, whose version says it all if it has one."""
        if own in OWN_AND_TORCHS:
            return True
        version = getattr(sys.modules.get(own), "__version__", None)
        if version is None or own in ("", package) or not package:
            return False
        self._add(f"{own} {version}")
        return True

    def _is_new(self, value: object) -> bool:
        """Return True if a value has not been read."""
        if id(value) in self._seen:
            return False
        self._seen[id(value)] = value
        if len(self._seen) == MOST:
            self.unread.append(f"more than {MOST} objects")
            self._add(_this_process())
        return len(self._seen) < MOST

    def _add(self, text: str) -> None:
        self.digest.update(text.encode(errors="surrogatepass"))


def _name_of(value: Any) -> str:  # Any: as above
    """Return the name of a function or class of torch or Python, whose code is not read; empty for other values."""
    is_named = package_of(value) in OWN_AND_TORCHS or isinstance(value, BuiltinFunctionType)
    return str(getattr(value, "__qualname__", None) or getattr(value, "__name__", "")) if is_named else ""


@cache
def _this_process() -> str:
    """Return a text of this process, drawn when it is first needed; children that fork later have the same."""
    return os.urandom(8).hex()


def _record_of_overload(value: Any) -> OpRecord | None:
    """Return the op of what `torch.ops` gives, if it is one of ours."""
    if type(value).__module__ != "torch._ops":
        return None
    name = getattr(value, "_qualified_op_name", None) or getattr(value, "_name", None)
    return find_record(name.removesuffix(".default")) if isinstance(name, str) else None
