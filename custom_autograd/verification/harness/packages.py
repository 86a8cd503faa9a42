"""The ops and autograd.Functions of a whole package, module or file, whose submodules are all imported."""

import functools
import importlib
import inspect
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import torch

from custom_autograd.core.errors import CheckError
from custom_autograd.core.messages import first_line
from custom_autograd.registration import registry
from custom_autograd.torch_private import definitions, dispatch, verification
from custom_autograd.verification.harness.op_files import Loaded, import_source, is_op, load, ops_of, split
from custom_autograd.verification.harness.scripts import attribute_of
from custom_autograd.verification.harness.targets import target_of


@dataclass(frozen=True, slots=True)
class Contents:
    """What a TARGET defines.

    Attributes:
        found: its ops and Functions, which other code can import by name.
        package: the name of its module; empty for an attribute, or a folder of files.
        unimportable: by the name of a submodule, why it cannot be imported.
    """

    found: tuple[Loaded, ...]
    package: str = ""
    unimportable: Mapping[str, str] = field(default_factory=dict)

    def holds(self, cls: type) -> bool:
        """Return True if a class is defined in the package."""
        return bool(self.package) and _is_within(cls.__module__, self.package)


def load_all(text: str) -> Contents:
    """Import a TARGET with its submodules, but for tests.

    Args:
        text: as `load` takes it; a name of a package is one even where a folder has the same name.

    Raises:
        CheckError: there is nothing of that name, importing it raises, or it defines nothing.
    """
    folder = Path(text)
    is_package = (folder / "__init__.py").is_file() and text.isidentifier()
    if split(text)[1] or (folder.is_dir() and not is_package):
        return Contents(load(text))
    root = import_source(text)
    unimportable: dict[str, str] = {}
    modules = [root, *_submodules(root, unimportable)]
    sources = {module.__name__: text if module is root else module.__name__ for module in modules}
    found = {target_of(value).name: value for value in ops_of(root)}
    for module in modules[1:]:
        own = [value for value in ops_of(module) if _is_within(_module_of(value), root.__name__)]
        found = {**{target_of(value).name: value for value in own}, **found}
    loaded = [Loaded(text, value, _address(value, sources, name)) for name, value in found.items()]
    rest = [name for name in _dispatcher_ops(root) if name not in found]
    loaded += [load(f"{_registering(name, sources)}:{name}")[0] for name in rest]
    loaded += [Loaded(text, cls, f"{sources[cls.__module__]}:{name}") for cls, name in _functions(sources)]
    if not loaded:
        reasons = "".join(f"\n  {name} cannot be imported: {reason}" for name, reason in unimportable.items())
        raise CheckError(f"{text}: no ops and no Functions are defined there{reasons}")
    return Contents(tuple(loaded), root.__name__, unimportable)


def _submodules(package: ModuleType, unimportable: dict[str, str]) -> Iterator[ModuleType]:
    """Yield the modules below a package that can be imported, and note why others cannot."""
    for info in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{package.__name__}."):
        if NOT_IMPORTED.fullmatch(info.name.rpartition(".")[2]):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = importlib.import_module(info.name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - other people's code; the reason is reported
            unimportable[info.name] = f"{type(error).__name__}: {first_line(error)}"  # type: ignore[arg-type]  # or it exits
            continue
        yield module
        yield from _submodules(module, unimportable)


NOT_IMPORTED = re.compile("__main__|conftest|setup|tests?|test_.*|.*_test")
"""Names of modules that are not part of what a package offers, and may run when they are imported."""


def _is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _module_of(op: object) -> str:
    """Return the name of the module that declares an op."""
    record = registry.record_of(op)
    function = record.declaration.function if record is not None else verification.function_of_definition(op)  # type: ignore[arg-type]  # is_op
    return str(getattr(inspect.unwrap(function), "__module__", ""))


def _address(op: object, sources: Mapping[str, str], name: str) -> str:
    """Return a TARGET that names an op alone: by the attribute of a module, else by its name in the dispatcher."""
    for module, source in sources.items():
        attribute = attribute_of(sys.modules[module], op)
        if attribute is not None:
            return f"{source}:{attribute}"
    return f"{_registering(name, sources)}:{name}"


def _dispatcher_ops(root: ModuleType) -> Iterator[str]:
    """Yield the names of the ops that the package registers with the dispatcher and that take tensors."""
    folders = {Path(folder).resolve() for folder in getattr(root, "__path__", ())}
    namespaces = {root.__name__, root.__name__.rpartition(".")[2]}

    @functools.cache  # thousands of ops of torch come from few files
    def place_of(file: str) -> tuple[bool, bool]:
        """Return whether a file belongs to the package, and whether it does not tell who registers an op."""
        path = Path(file).resolve()
        is_own = str(path) == root.__file__ or not folders.isdisjoint(path.parents)
        return is_own, path.suffix != ".py" or path == Path(torch.library.__file__).resolve()  # C++, Library.define

    for name in sorted(dispatch.all_names()):
        definition = definitions.find_definition(name)
        if definition is not None:
            is_own = _is_within(_module_of(definition), root.__name__)
        else:
            is_in_files, is_nowhere = place_of(dispatch.schema_and_file(name)[1])
            is_own = is_in_files or (is_nowhere and name.partition("::")[0] in namespaces)
        if is_own and "Tensor" in dispatch.schema_and_file(name)[0]:
            yield name


def _registering(name: str, sources: Mapping[str, str]) -> str:
    """Return the TARGET whose import registers an op: the module that declares it, else the package."""
    declared = registry.find_record(name) or definitions.find_definition(name)
    if declared is not None and _module_of(declared) in sources:
        return sources[_module_of(declared)]
    _, file = dispatch.schema_and_file(name)
    files = {getattr(sys.modules[module], "__file__", None): source for module, source in sources.items()}
    return files.get(file, next(iter(sources.values())))


def _functions(sources: Mapping[str, str]) -> Iterator[tuple[type, str]]:
    """Yield the Functions that modules define and hold under a name, in the order of their definition."""
    for cls in all_subclasses(torch.autograd.Function):
        name = importable_name(cls) if cls.__module__ in sources else None
        if name is not None and cls.forward is not torch.autograd.Function.forward:
            yield cls, name


def importable_name(cls: type) -> str | None:
    """Return the name under which its module holds a class; None for those of ops, and those within functions."""
    module = sys.modules.get(cls.__module__)
    if module is None or is_op(getattr(module, cls.__qualname__.partition(".")[0], None)):
        return None
    return attribute_of(module, cls)


def all_subclasses(cls: type[torch.autograd.Function]) -> Iterator[type[torch.autograd.Function]]:
    """Yield every subclass once."""
    seen: dict[type[torch.autograd.Function], None] = {}
    waiting = cls.__subclasses__()
    while waiting:
        one = waiting.pop(0)
        if one not in seen:
            seen[one] = None
            waiting += one.__subclasses__()
    yield from seen
