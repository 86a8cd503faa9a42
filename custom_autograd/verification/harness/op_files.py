"""The words of a command line: a TARGET (a module, a file, a folder, or an attribute of one) and a device."""

import contextlib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import getattr_static
from pathlib import Path
from types import ModuleType

import torch

from custom_autograd.core.device_types import IMPORT_BACKEND
from custom_autograd.core.errors import CheckError
from custom_autograd.core.locations import format_location, packages_of
from custom_autograd.core.messages import suggest
from custom_autograd.registration import registry
from custom_autograd.torch_private import definitions, verification
from custom_autograd.verification.harness.targets import Target


@dataclass(frozen=True, slots=True)
class Loaded:
    """Something that can be checked.

    Args:
        text: the TARGET that it comes from.
        value: what is checked.
        alone: a TARGET that names it and nothing else; that which it comes from if there is none.
    """

    text: str
    value: object
    alone: str


def load(text: str) -> tuple[Loaded, ...]:
    """Import everything a TARGET names.

    Args:
        text: `package.module`, `file.py`, `folder`, or an attribute of the first two as `package.module:attribute`;
            also an op of the dispatcher that importing them registers, as `package.module:namespace::op`.

    Returns:
        The ops in the order of their declaration; at least one.

    Raises:
        CheckError: there is nothing of that name, it declares no ops, or importing it raises.
    """
    source, attribute = split(text)
    path = Path(source)
    if path.is_dir() and not attribute:
        modules = [(str(file), _import_file(file)) for file in _files(path)]
    else:
        modules = [(source, import_source(source))]
    if attribute:
        find = _dispatcher_op if "::" in attribute else _attribute
        return (Loaded(text, find(modules[0][1], attribute, source), text),)
    found = [(value, _alone(where, module, value)) for where, module in modules for value in ops_of(module)]
    if not found:
        raise CheckError(f"{text}: no ops are declared there; an op comes from custom_op or torch.library.custom_op")
    return tuple(Loaded(text, value, (len(found) > 1 and alone) or text) for value, alone in found)


def split(text: str) -> tuple[str, str]:
    """Return the module or file of a TARGET, and its attribute or its op of the dispatcher; empty if there is none."""
    folder, slash, name = text.rpartition("/")  # the name of a folder may have colons too
    namespace, colons, op = name.partition("::")
    source, colon, attribute = namespace.rpartition(":")
    return (f"{folder}{slash}{source}", f"{attribute}{colons}{op}") if colon else (text, "")


def import_source(source: str) -> ModuleType:
    """Import a file, whose name ends in .py, or a module.

    Raises:
        CheckError: there is none of that name, or importing it raises.
    """
    path = Path(source)
    return _import_file(path) if path.suffix == ".py" else _import_module(source)


def _alone(source: str, module: ModuleType, value: object) -> str | None:
    """Return the TARGET of one op among those of a module; None if the module does not keep it."""
    names = [name for name, other in vars(module).items() if other is value]
    return f"{source}:{names[0]}" if names else None


def ops_of(module: ModuleType) -> list[object]:
    """Return the ops among the attributes of a module, then those it declared without keeping."""
    found: list[object] = []
    for value in vars(module).values():
        if is_op(value) and not any(value is other for other in found):
            found.append(value)
    kept = [registry.record_of(value) for value in found]
    declared = [
        record for record in registry.all_records() if record.declaration.function.__module__ == module.__name__
    ]
    return found + [record for record in declared if record not in kept]


def is_whole(text: str) -> bool:
    """Return True if a TARGET is a folder or a module, and not one file or one attribute among others."""
    return not split(text)[1] and not text.endswith(".py")


def names_of_all() -> frozenset[str]:
    """Return the names of all ops that this process has declared."""
    return frozenset(record.name for record in registry.all_records()) | definitions.names_of_definitions()


def is_op(value: object) -> bool:
    """Return True if a value is the handle of a declared op."""
    is_handle = not isinstance(value, type) and registry.record_of(value) is not None
    return is_handle or isinstance(value, verification.Definition)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files directly in a folder that mention a declaration; tests and hidden files are left alone."""
    for file in sorted(folder.glob("*.py")):
        is_left_alone = file.name.startswith(("_", ".", "test_")) or file.name in ("conftest.py", "setup.py")
        if not is_left_alone and DECLARATION.search(file.read_text(encoding="utf-8", errors="replace")):
            yield file


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise CheckError(f"{path}: there is no such file")
    path = path.resolve()
    package = _import_package_of(path)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file is not None and str(file).endswith(path.name) and Path(file) == path:  # a Path for each takes long
            return module
    alone = path.stem if path.stem not in sys.modules else f"{path.parent.name}_{path.stem}"
    name = f"{package}.{path.stem}" if package else alone
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CheckError(f"{path.name}: this is not a Python file")
    module = importlib.util.module_from_spec(spec)
    _on_path(path.parent)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise CheckError(_raised(str(path.name), error)) from error
    return module


def _import_package_of(path: Path) -> str | None:
    """Import the package that a file is in, and return its name; None if there is none that can be imported."""
    packages = packages_of(path)
    if not packages:
        return None
    _on_path(packages[-1].parent)
    name = ".".join(folder.name for folder in reversed(packages))
    with contextlib.suppress(Exception, SystemExit):  # the file may do without
        file = _file_of(importlib.import_module(name))
        return name if file is not None and file.resolve() == path.parent / "__init__.py" else None
    return None


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file)


def _import_module(name: str) -> ModuleType:
    if name.startswith("."):  # a folder that is not there; the import would take it for a relative one
        raise CheckError(f"{name}: {_why_missing(name)}")
    _on_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise CheckError(f"{name}: {_why_missing(name)}") from error
        raise CheckError(_raised(name, error)) from error
    except ValueError as error:
        raise CheckError(f"{name!r}: {_why_missing(name)}") from error
    except (Exception, SystemExit) as error:
        raise CheckError(_raised(name, error)) from error


def _why_missing(name: str) -> str:
    if name and Path(name).is_file():
        return "this is not a Python file; the name of one ends in .py"
    return "there is no module, file or folder of that name"


def _on_path(folder: Path) -> None:
    """Let a target import what is next to it, as running it would."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _attribute(module: ModuleType, name: str, source: str) -> object:
    value: object = module
    for part in name.split("."):
        if not hasattr(value, part):
            advice = suggest(part, _checkable_names(value))
            raise CheckError(f"{source} has no attribute '{name}'" + (f"; {advice}" if advice else ""))
        value = getattr(value, part)
    return value


def _dispatcher_op(module: ModuleType, name: str, source: str) -> object:
    """Return what declared an op here or with torch.library.custom_op, else its overload in the dispatcher."""
    del module  # importing it has registered the op
    declared = registry.find_record(name) or definitions.find_definition(name)
    namespace, _, op = name.partition("::")
    packet, _, overload = op.partition(".")
    found = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload or "default", None)
    if declared is None and found is None:
        raise CheckError(f"{source} registers no op '{name}'")
    return declared or found


def _checkable_names(holder: object) -> list[str]:
    """Return the attributes that can be checked; what a module imports, such as `Tensor`, is not meant."""
    values = {name: getattr_static(holder, name, None) for name in dir(holder) if not name.startswith("_")}
    home = holder.__name__ if isinstance(holder, ModuleType) else None
    return [
        name
        for name, value in values.items()
        if is_op(value)
        or isinstance(value, Target)
        or (callable(value) and home in (None, getattr(value, "__module__", None)))
    ]


def _raised(source: str, error: BaseException) -> str:
    frames = list(traceback.extract_tb(error.__traceback__))
    # the first is the line of the target that starts it all; what happens inside this package is not to be mended there
    frames = [frame for frame in frames if not _is_internal(frame.filename)]
    shown = frames[:1] + frames[1:][-2:]
    lines = [f"  {format_location(frame.filename, frame.lineno)} {frame.name}: {frame.line}" for frame in shown]
    return "\n".join([f"{source}: importing it raises {type(error).__name__}: {error}", *lines])


def _is_internal(file: str) -> bool:
    """Return True if a file belongs to this package, or to what imports modules."""
    return file.startswith("<frozen importlib") or file == importlib.__file__ or PACKAGE in Path(file).parents


PACKAGE = Path(__file__).parents[2]

DECLARATION = re.compile(r"custom_op|torch\.library|triton_op")


def device_of(name: str) -> torch.device:
    """Return the device of a name such as cuda:0.

    Raises:
        CheckError: there is no device of that name, or none here.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        do = f"{IMPORT_BACKEND}, for example in the file of the ops"
        raise CheckError(f"{name}: there is no device type of that name", do=do) from error
    count = getattr(getattr(torch, device.type, None), "device_count", None)
    has_index = device.index is None or count is None or device.index < count()
    if not has_device(device.type) or not has_index:
        raise CheckError(f"{name}: there is no such device here")
    return device


def has_device(device_type: str) -> bool:
    """Return True if a tensor can be created on a device of this type here."""
    if device_type == "cpu":
        return True
    module = getattr(torch, device_type, None)
    return bool(module is not None and hasattr(module, "is_available") and module.is_available())
