"""A function of a C++ source file as a Python callable: built at its first call, with something to fall back to.

kernel = cpp_kernel(Path(__file__).with_suffix(".cpp"), "rms_norm", fallback=reference)

first call -> library in the cache? -> load -> kernel(...) from now on
              no -> build (see `shared_library.py`) -> load
                    cannot be built -> one warning, then fallback(...) from now on
"""

from __future__ import annotations

import ctypes
import inspect
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.device_types import devices_of, error_of_devices
from custom_autograd.core.errors import KernelError, KernelUnavailable, Origin, raise_if_any
from custom_autograd.core.locks import thread_lock
from custom_autograd.core.messages import advise, quote, show, suggest
from custom_autograd.kernels import native_kernels
from custom_autograd.kernels.lazy_kernel import LazyKernel
from custom_autograd.kernels.native_kernels import NativeOperator
from custom_autograd.schema.arguments import error_of_type
from custom_autograd.torch_private.definitions import ParsedValue, names_in, parse_schema
from custom_autograd.torch_private.dispatch import argument_names, key_of_device, schema_text

LITERAL_OR_COMMENT = re.compile(
    r'R"(?P<delimiter>[^()\\\s]{0,16})\((?P<raw>.*?)\)(?P=delimiter)"'
    r'|"(?P<text>(?:[^"\\\n]|\\.)*)"'
    r"|'(?:[^'\\\n]|\\.)'|//[^\n]*|/\*.*?\*/",
    re.DOTALL,
)
REGISTRATION = re.compile(r'\bdef\s*\(\s*((?:"\d+"\s*)+)')
"""`m.def("schema" ...`, where a number stands for what each literal holds."""
HOST = "all tensors on one device; arguments of the function that are on the CPU are named with host="


def definitions_in(source: Path) -> dict[str, str]:
    """Return the schemas that the text of a source shows, by function and without its name: `(Tensor x) -> Tensor`."""
    literals: list[str] = []

    def numbered(token: re.Match[str]) -> str:
        literal = token["raw"] if token["raw"] is not None else token["text"]
        if literal is None:
            return " "
        literals.append(literal)
        return f'"{len(literals) - 1}"'

    text = LITERAL_OR_COMMENT.sub(numbered, source.read_text(encoding="utf-8", errors="replace"))
    found: dict[str, str] = {}
    for registration in REGISTRATION.finditer(text):
        definition = "".join(literals[int(number)] for number in re.findall(r"\d+", registration[1]))
        name, bracket, rest = definition.strip().partition("(")
        if bracket:
            found.setdefault(name.strip(), " ".join(f"({rest}".split()))
    return found


def _is_on_cpu(value: Any) -> bool:  # Any: an argument
    if isinstance(value, (list, tuple)):
        return all(map(_is_on_cpu, value))
    return isinstance(value, Tensor) and value.device.type == "cpu"


def cpp_kernel(
    source: str | os.PathLike[str],
    function: str,
    *,
    fallback: Callable[..., Any] | None = None,
    flags: Sequence[str] = (),
    host: Sequence[str] = (),
) -> CppKernel:
    """Return a function that a C++ source file defines; nothing is built or loaded before the first call.

    The source includes `custom_autograd/kernel.h` and registers its functions in the namespace that the build gives
    it: `STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m)` and `STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m)`.

    Args:
        source: the C++ file. It is compiled alone, against torch's stable ABI.
        function: the name under which the source registers the function.
        fallback: what runs instead where the source cannot be built, with the same arguments. Without one the call
            raises.
        flags: further flags for the compiler, one word each.
        host: arguments that may be on the CPU while the other tensors are on a device, such as offsets. A source with
            kernels for other devices than the CPU is not called with tensors on several devices otherwise.

    Returns:
        The callable, fit for the body of a kernel registered with `op.register_kernel("cpu")`.

    Raises:
        KernelError: the flags or the arguments are a single text.

    Example:
        >>> kernel = cpp_kernel("no/such/file.cpp", "double", fallback=lambda x: x + x)
        >>> kernel.source.name
        'file.cpp'
    """
    return CppKernel(source, function, fallback, flags, host)


class CppKernel(LazyKernel):
    """A function of a C++ source file; see `cpp_kernel`.

    Attributes:
        operator: what its library registers, once that is loaded.

    It is safe in threads, after a fork, and in processes that start together. It computes values only: gradients
    belong to the op that calls it.
    """

    __slots__ = native_kernels.SLOTS
    _language = "cpp"

    def __init__(
        self,
        source: str | os.PathLike[str],
        function: str,
        fallback: Callable[..., Any] | None,
        flags: Sequence[str],
        host: Sequence[str] = (),
    ) -> None:
        super().__init__(function, fallback)
        self.source = Path(source).absolute()
        self.function = function
        self.operator: NativeOperator | None = None
        self.flags = words(function, flags, "flags", "['-O2', '-Iinclude']")
        self.host = words(function, host, "host", "['offsets']")

    @property
    def written_in(self) -> str:
        """Return the source and the function, for messages."""
        return f"{self.source.name}, '{self.function}'"

    @property
    def _origin(self) -> Origin:
        return Origin(self.source.name, str(self.source))

    @property
    def __signature__(self) -> inspect.Signature:
        """Return the parameters in the source's `m.def`, by which a registration is checked; nothing is built.

        Raises:
            AttributeError: the text of the source does not show them.
        """
        try:
            definition = definitions_in(self.source).get(self.function)
            arguments = parse_schema(f"{self.function}{definition}")[0] if definition else None
        except (OSError, RuntimeError) as error:  # they are shown when the source is built
            raise AttributeError(str(error)) from error
        if arguments is None:
            raise AttributeError(f"{self.source.name} does not show the parameters of {self.function!r}")
        return inspect.Signature([_parameter(argument) for argument in arguments])

    def __repr__(self) -> str:
        return f"{self._language}_kernel({str(self.source)!r}, {self.function!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self.function, self.fallback, self.flags, self.host)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:  # Any: what the schema of the source declares
        """Run the function, or the fallback if it cannot be built.

        Raises:
            KernelError: the source has no kernel for the device type of a tensor, or the arguments do not fit it.
            KernelUnavailable: the C++ function does not take what the source declares.
        """
        try:
            return self._call(*args, **kwargs)
        except RuntimeError as error:
            is_unserved = isinstance(error, NotImplementedError)
            given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}  # Any: as the arguments
            raise_if_any(self._unserved(given) if is_unserved else self._misfit(error), error)
            raise

    def _misfit(self, error: RuntimeError) -> KernelError | None:
        """Return the error of a call that does not fit the schema, or of a schema that does not fit the function."""
        text = str(error)
        boxed = re.search(r"Registered schema has (\d+ \w+), but the kernel to box has (\d+)", text)
        if boxed is not None:
            return self._origin.error(
                KernelUnavailable,
                f"the C++ function behind '{self.function}' does not take what its schema declares",
                expected=f'{boxed[1]}, as in m.def("{self.function}(...)")',
                found=boxed[2],
                do="give the function a parameter or a result for each of the schema, in order",
            )
        operator = self.operator.name if self.operator is not None else ""
        told = error_of_type(self._origin, operator, error)
        if told is not None or not operator or not text.startswith(f"{operator}() "):
            return told
        found, _, declared = text.removeprefix(f"{operator}() ").partition(" Declaration: ")
        return self._origin.error(
            KernelError,
            f"'{self.function}' does not take these arguments",
            expected=declared.replace(operator, self.function),
            found=found.rpartition("but received ")[2],
            do="pass what its schema declares",
        )

    def _unserved(self, arguments: dict[Any, Any]) -> KernelError | None:
        """Return the error of a call with a tensor for whose device type the source has no kernel; None if it has."""
        keys = [key for key, _ in self.operator.addresses] if self.operator is not None else []
        types = {device.type: key_of_device(device.type) for _, device in devices_of(arguments)}
        unserved = next((one for one, key in types.items() if one != "meta" and key not in keys), None)
        if not keys or unserved is None:
            return None
        return self._origin.error(
            KernelError,
            f"'{self.function}' has no kernel for device type {unserved!r}",
            expected=f"tensors whose dispatch key is {quote(keys)}",
            found=f"{unserved!r}, whose dispatch key is '{types[unserved]}'",
            do=f"add STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, {types[unserved]}, m) to the source, "
            f"or register another kernel of the op for {unserved!r}",
        )

    def build(self) -> tuple[str, Path]:
        """Return the namespace in which the source registers its functions, and the library, built if need be.

        Raises:
            KernelUnavailable: there is no compiler, it refuses the source, or the cache cannot be written.
        """
        from custom_autograd.kernels.shared_library import find_or_build  # loads the compilers

        return find_or_build(self.source, self.flags)

    def load(self) -> Callable[..., Any]:
        """Return the function itself, built and loaded if need be.

        Raises:
            KernelUnavailable: there is no compiler, it refuses the source, or the cache cannot be written.
        """
        # The functions are private torch ops: unlike raw pointers an op refuses fake tensors and wrong types, and
        # turns C++ exceptions into Python's. Native code calls them without Python (native/source/boxed.h).
        name, path = self.build()
        # One library may be reached by two paths (two cache folders); loaded twice it would register its ops twice.
        with thread_lock(path.name):
            loaded = next((Path(one) for one in torch.ops.loaded_libraries if Path(one).name == path.name), None)
            if loaded is None:
                load_library(path)
        try:
            overload: Callable[..., Any] = getattr(getattr(torch.ops, name), self.function).default
        except AttributeError as error:
            known = names_in(name)
            raise KernelUnavailable(
                self.source.name,
                f"the source registers no function '{self.function}' in KERNEL_NAMESPACE",
                expected=f"one of {quote(known)}" if known else None,
                rule=str(self.source),
                do=suggest(self.function, known) or self._to_register(),
            ) from error
        addresses = addresses_of(loaded or path, name, self.function)
        operator = NativeOperator(f"{name}::{self.function}", self.source.name, addresses)
        schema = parse_schema(schema_text(operator.name))
        for _, address in addresses:
            for found, declared in zip(types_of(loaded or path, address), schema, strict=False):
                raise_if_any(self._mistyped(found, declared))
        is_for_cpu = {key for key, _ in addresses} <= {"CPU"}
        return self._served(overload if is_for_cpu else self._on_one_device(overload, operator), operator)

    def _to_register(self) -> str:
        """Return the advice for a function that is not registered: in a namespace of its own, or not at all."""
        if hasattr(self, "__signature__"):  # the text of the source shows its definition
            return "register it in the namespace of the build: STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m)"
        return f'name it, or add m.def("{self.function}(...)") to the source'

    def _on_one_device(self, function: Callable[..., Any], operator: NativeOperator) -> Callable[..., Any]:
        """Return a function that raises for tensors on several devices."""
        # Native code calls the operator without it: only with tensors on one device, and leaves other calls to Python.
        origin, names, host = self._origin, argument_names(operator.name), frozenset(self.host)
        unknown = next((name for name in self.host if name not in names), None)
        if unknown is not None:
            problem = f"host= names {unknown!r}, which is not an argument of the function"
            raise origin.error(KernelError, problem, expected=quote(names), do=advise(unknown, names))

        def call(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            fixed = {name: value for name, value in given.items() if name not in host or not _is_on_cpu(value)}
            raise_if_any(error_of_devices(origin, fixed, HOST))
            return function(*args, **kwargs)

        return call

    def _mistyped(self, found: Sequence[str], declared: Sequence[ParsedValue]) -> KernelUnavailable | None:
        """Return the error of a function with a value of another type than that of its schema; None if all fit."""
        # torch takes the bytes of a value for what the function declares: numbers are wrong, or the process ends.
        for one, value in zip(found, declared, strict=False) if len(found) == len(declared) else ():  # see `_misfit`
            if one and value.type.rstrip("?[]") in CPP_TYPES and one != value.type:
                name = f"'{value.name}'" if value.name else "a result"
                return self._origin.error(
                    KernelUnavailable,
                    f"the C++ function behind '{self.function}' has another type for {name} than its schema",
                    expected=f"{in_cpp(value.type)}, since the schema has {value.type}",
                    found=in_cpp(one),
                    do="change the type in the C++ function, or the schema",
                )
        return None

    def _served(self, function: Callable[..., Any], operator: NativeOperator) -> Callable[..., Any]:
        """Return what serves the calls: the function; native code calls it too, from now on."""
        self._offer(operator)
        return function

    def _offer(self, operator: NativeOperator) -> None:
        if type(self).__call__ is CppKernel.__call__:  # else a call does more than the operator
            self.operator = operator
            native_kernels.offer(self, operator)


def words(function: str, given: Sequence[str], option: str, example: str) -> tuple[str, ...]:
    """Return the words of an option, such as flags for a compiler."""
    if isinstance(given, str) or not all(isinstance(word, str) for word in given):
        expected, do = "a sequence of str, one for each word", f"give each word as an item: {option}={example}"
        raise KernelError(function, f"'{option}' is not a list of words", expected=expected, found=show(given), do=do)
    return tuple(given)


def addresses_of(path: Path, namespace: str, function: str) -> tuple[tuple[str, int], ...]:
    """Return the dispatch key and the address of each kernel of a function that `kernel.h` has noted."""
    try:
        find = ctypes.CDLL(str(path)).custom_autograd_kernel
    except AttributeError:  # the source does not include the header
        return ()
    find.restype, find.argtypes = ctypes.c_char_p, [ctypes.c_uint64, *[ctypes.c_char_p] * 2, ctypes.c_void_p]
    rows, address = list[tuple[str, int]](), ctypes.c_void_p()
    while (key := find(len(rows), namespace.encode(), function.encode(), ctypes.byref(address))) is not None:
        rows.append((key.decode(), address.value or 0))
    return tuple((key, its) for key, its in rows if key)  # one without a key is for every device type


def types_of(path: Path, address: int) -> list[list[str]]:
    """Return the types of the parameters and of the results of a kernel, as a schema spells them, "" for others.

    The list is empty if they are not known.
    """
    try:
        find = ctypes.CDLL(str(path)).custom_autograd_types
    except AttributeError:  # the source does not include the header, or an older one
        return []
    find.restype, find.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    text = find(address)
    return [] if text is None else [part.split(",")[:-1] for part in text.decode().split("->")]


def in_cpp(spelling: str) -> str:
    """Return the C++ type of an argument that a schema spells so."""
    if spelling.endswith("?"):
        return f"std::optional<{in_cpp(spelling[:-1])}>"
    return f"std::vector<{in_cpp(spelling[:-2])}>" if spelling.endswith("[]") else CPP_TYPES.get(spelling, spelling)


CPP_TYPES = {"Tensor": "Tensor", "int": "int64_t", "float": "double", "bool": "bool", "str": "std::string"}


def load_library(path: Path) -> None:
    """Load a built library into this process."""
    try:
        torch.ops.load_library(path)
    except OSError as error:
        found = str(error.__cause__ or error)
        advice = "point CUSTOM_AUTOGRAD_CACHE at a folder from which libraries may be loaded"
        if "undefined symbol" in found:
            advice = "define the symbol in the source, or link what does: flags=['-L...', '-l...']"
        raise KernelUnavailable(
            path.name, "the library cannot be loaded", found=found, rule=str(path), do=advice
        ) from error


def _parameter(argument: ParsedValue) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY if argument.is_keyword_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(
        argument.name, kind, default=argument.default if argument.has_default else inspect.Parameter.empty
    )
