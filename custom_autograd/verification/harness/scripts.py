"""A program that shows a failure by itself: it loads the target, writes the sample out, and runs the one check."""

import dataclasses
import enum
import inspect
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import torch
from torch import Tensor

from custom_autograd.registration import registry
from custom_autograd.schema.samples import Sample, children_of
from custom_autograd.verification.harness.base import Check
from custom_autograd.verification.harness.targets import Target

LARGEST_LITERAL = 4096  # elements


def script_of(target: Target, sample: Sample, check: Check, seed: int) -> str:
    """Return the program's text; it raises CheckError with the finding.

    Args:
        target: what fails.
        sample: the call on which it fails.
        check: the check, or the part of one.
        seed: where random numbers begin.
    """
    arguments = [_literal(value) for value in sample.args]
    arguments += [f"{name}={_literal(value)}" for name, value in sample.kwargs.items()]
    is_named = check.source == f'"{check.name}"'
    lines = [
        f"# {target.name} fails the check {check.name}",
        "import torch",
        "from math import inf, nan",
        "from custom_autograd import Sample, check",
        *([] if is_named else [f"from {type(check).__module__} import {type(check).__name__}"]),
        *_loading(target),
        *_classes(target, sample),
        "sample = Sample(",
        *(f"    {argument}," for argument in arguments),
        f"){_declared(sample)}",
        f"check(op, [sample], checks=[{check.source}], seed={seed}, raise_on_failure=True)",
    ]
    return "\n".join(lines)


def _declared(sample: Sample) -> str:
    """Return what is declared of the sample: the numbers that checks keep, and what it raises."""
    kept = f".keeping({', '.join(map(repr, sample.kept))})" if sample.kept else ""
    if sample.error is None:
        return kept
    home, name = sample.error.type.__module__, sample.error.type.__qualname__
    name = name if home == "builtins" else f"__import__({home!r}, fromlist=['']).{name}"
    where = f", on={sample.error.device_types!r}" if sample.error.device_types else ""
    return f"{kept}.raises({name}, match={sample.error.match!r}{where})"


def _loading(target: Target) -> list[str]:
    """Return the lines that give the target the name `op`."""
    module = _module_of(target.subject)
    attribute = None if module is None else attribute_of(module, target.subject)
    if target.overload is not None and (module is None or attribute is None):
        spelling = str(target.overload).replace(" ", "")
        before = [] if module is None else _loading_of(module, "")
        return [*before, f"op = torch.ops.{spelling}"]
    if module is None or attribute is None:
        return [f"op = ...  # {target.name}, which no module holds under a name"]
    return _loading_of(module, attribute)


def _loading_of(module: ModuleType, attribute: str) -> list[str]:
    file = getattr(module, "__file__", None)
    is_source = file is not None and str(file).endswith(".py") and Path(file).is_file()  # not in an archive
    if "." in module.__name__ or hasattr(module, "__path__") or not is_source:
        root, _, rest = attribute.partition(".")
        line = f"from {module.__name__} import {root}" if attribute else f"import {module.__name__}"
        return [line, *([f"op = {root}.{rest}" if rest else f"op = {root}"] if attribute else [])]
    path = Path(str(file)).resolve().as_posix()  # the script may be run from anywhere
    call = f'load("{path}:{attribute}")[0].value' if attribute else f'load("{path}")'
    return ["from custom_autograd.verification.harness.op_files import load", f"op = {call}" if attribute else call]


def _module_of(value: object) -> ModuleType | None:
    record = registry.record_of(value)
    function = record.declaration.function if record is not None else getattr(value, "_init_fn", value)
    name = getattr(inspect.unwrap(function) if callable(function) else function, "__module__", None)
    return sys.modules.get(name) if isinstance(name, str) else None


def attribute_of(module: ModuleType, value: object) -> str | None:
    """Return the name under which a module, or a class in it, holds a value."""
    qualified = getattr(value, "__qualname__", None)
    names = [name for name, row in vars(module).items() if row is value]
    if names or not isinstance(qualified, str) or "<" in qualified:
        return names[0] if names else None
    found: object = module
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return qualified if found is value else None


def _classes(target: Target, sample: Sample) -> list[str]:
    """Return the lines that give the classes of containers in a sample their names."""
    module = _module_of(target.subject)
    lines = []
    for cls in dict.fromkeys(_classes_in([*sample.args, *sample.kwargs.values()])):
        is_in_module = module is not None and cls.__module__ == module.__name__ and "." not in module.__name__
        home = "__import__('sys').modules[op.__module__]"
        lines.append(f"{cls.__name__} = {home}.{cls.__qualname__}" if is_in_module else _import_of(cls))
    return lines


def _import_of(cls: type) -> str:
    root, _, rest = cls.__qualname__.partition(".")
    return f"from {cls.__module__} import {root}" + (f"; {cls.__name__} = {root}.{rest}" if rest else "")


def _classes_in(value: object) -> list[type]:
    """Return the NamedTuples, dataclasses and Enums in a value."""
    own = [type(value)] if isinstance(value, enum.Enum) or _fields_of(value) is not None else []
    return own + [cls for _, item in children_of(value) for cls in _classes_in(item)]


def _fields_of(value: object) -> dict[str, object] | None:
    """Return what a NamedTuple or a dataclass is made of."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(getattr(value, "_fields", ()), value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    return None


def _literal(value: object) -> str:
    fields = _fields_of(value)
    if fields is not None:
        return f"{type(value).__name__}({', '.join(f'{name}={_literal(item)}' for name, item in fields.items())})"
    if isinstance(value, enum.Flag):
        return f"{type(value).__name__}({value.value})"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}[{value.name!r}]"
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, torch.device):
        return f"torch.{value!r}"
    if isinstance(value, torch.Generator):
        return f'torch.Generator("{value.device}").manual_seed({value.initial_seed()})'
    if isinstance(value, (type, FunctionType)):
        return f"__import__({value.__module__!r}, fromlist=['']).{value.__qualname__}"  # where it is used
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        items = ", ".join(_literal(item) for item in value)
        return f"[{items}]" if isinstance(value, list) else f"({items},)" if len(value) == 1 else f"({items})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_literal(item)}" for key, item in value.items()) + "}"
    is_object = type(value).__repr__ is object.__repr__ or isinstance(value, torch.nn.Module)
    return f"{_literal(type(value))}(...)" if is_object else repr(value)  # to be filled in


def _tensor(tensor: Tensor) -> str:
    options = f"dtype={tensor.dtype}" + (f', device="{tensor.device}"' if tensor.device.type != "cpu" else "")
    options += ", requires_grad=True" if tensor.requires_grad else ""
    shape = tuple(tensor.shape)
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.numel() > LARGEST_LITERAL:
        return f"torch.rand({shape}, {options})  # a {tensor.layout} tensor too large or too special to write out"
    if tensor.numel() == 0:
        return f"torch.empty({shape}, {options})"
    return f"torch.tensor({tensor.detach().cpu().tolist()}, {options})"
