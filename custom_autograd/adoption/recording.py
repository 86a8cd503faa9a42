"""Runs a script with the modules that `migrate` reads, and compares what old and new code make of its calls.

record     the old code: the calls of each Function and op, their outputs and gradients, and what from_function learns
compare    the new code, on the same arguments

Each runs in a process of its own, since both declare ops of the same names.
"""

from __future__ import annotations

import importlib
import io
import multiprocessing
import pickle
import re
import runpy
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from custom_autograd.adoption.recorded_calls import with_defaults
from custom_autograd.core.errors import CheckError
from custom_autograd.core.messages import first_line
from custom_autograd.schema.arguments import spell_annotation
from custom_autograd.schema.samples import Sample, map_tensors
from custom_autograd.torch_private.verification import Watch, name_of_overload
from custom_autograd.values.random_state import RandomState, kept_random_state
from custom_autograd.verification.harness.recorder import applied

MOST = 5
"""Calls of each Function and op that are kept."""

Calls: TypeAlias = "dict[str, list[list[Any]]]"  # Any: arguments


def record(root: Path, modules: Sequence[str], script: Path) -> dict[str, Any]:
    """Return what a script calls: by name, calls with outputs and gradients, and what is known of Functions.

    Raises:
        CheckError: the script fails.
    """
    found: dict[str, Any] = _in_child(_record, str(root), list(modules), str(script))
    return found


def compare(
    root: Path, sources: Mapping[Path, str], recorded: Mapping[str, Any], ops: Mapping[str, str]
) -> dict[str, str]:
    """Return by name of a Function or an op how the new code differs from the old; empty if it does not.

    Args:
        root: the folder that modules are imported from.
        sources: the new source of each file below it.
        recorded: what `record` returned.
        ops: "module:variable" of the op, by name of the Function.
    """
    with tempfile.TemporaryDirectory() as folder:
        for top in {path.relative_to(root).parts[0] for path in sources}:
            copy = shutil.copytree if (root / top).is_dir() else shutil.copy
            copy(root / top, Path(folder) / top)
        for path, text in sources.items():
            (Path(folder) / path.relative_to(root)).write_text(text, encoding="utf-8")
        found: dict[str, str] = _in_child(
            _compare, [folder, str(root)], recorded["modules"], recorded["calls"], dict(ops)
        )
    return found


def _in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder, "arguments"), Path(folder, "result")
        torch.save(arguments, given)
        child = multiprocessing.get_context("spawn").Process(target=_child, args=(function, str(given), str(result)))
        child.start()
        child.join()
        if not result.exists():
            raise CheckError(
                "migrate", "the recorded code failed: its error is above", do="correct it, and run it again"
            )
        return torch.load(result, weights_only=False)


def _child(function: Callable[..., Any], given: str, result: str) -> None:
    torch.save(function(*torch.load(given, weights_only=False)), result)


def _record(root: str, modules: list[str], script: str) -> dict[str, Any]:
    sys.path[:0] = [root, str(Path(script).parent)]
    calls: Calls = {}
    classes: dict[str, type[torch.autograd.Function]] = {}
    namespaces = {"aten", "prim", "prims", "profiler"}

    def on_op(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any], _: object) -> None:
        name = name_of_overload(overload)
        if name.partition("::")[0] not in namespaces and not kwargs:
            _keep(calls, name, args)

    def on_apply(cls: type[torch.autograd.Function], args: Sequence[Any], _: object) -> Callable[[], None]:
        def keep() -> None:
            if cls.__module__ in modules:
                classes[cls.__qualname__] = cls
                _keep(calls, cls.__qualname__, args)

        return keep

    with applied(on_apply), Watch(on_op):
        runpy.run_path(script, run_name="__main__")
    loaded = [module for module in modules if module in sys.modules]  # others may need what is not installed
    results: dict[str, Any] = {"calls": {}, "functions": {}, "modules": loaded}
    for name, rows in calls.items():
        call = classes[name].apply if name in classes else _overload(name)
        has_grads = all(_has_grads(call, row) for row in rows)
        kept = [(row, _outputs_and_grads(call, row, has_grads=has_grads), has_grads) for row in rows]
        if _can_be_stored(kept):
            results["calls"][name] = kept
        if name in classes:
            results["functions"][name] = _learnt(classes[name], kept)
    return results


def _keep(calls: Calls, name: str, arguments: Sequence[Any]) -> None:
    rows = calls.setdefault(name, [])
    if len(rows) < MOST:
        with torch.no_grad():
            rows.append([map_tensors(value, _leaf) for value in arguments])


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _can_be_stored(kept: object) -> bool:
    """Return False for calls with arguments such as a lambda, which no other process can have."""
    try:
        torch.save(kept, io.BytesIO())
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True


def _learnt(
    cls: type[torch.autograd.Function], kept: list[tuple[list[Any], list[Any], bool]]
) -> tuple[dict[str, str], str, str]:
    """Return the annotations of forward, the source of samples for from_function, and why it makes no op."""
    from custom_autograd.adoption.function_ops import from_function
    from custom_autograd.adoption.function_types import typed_parameters
    from custom_autograd.schema.annotations import Refusal

    types: dict[str, str] = {}
    calls = [with_defaults(cls, *row) for row, _, _ in kept]
    try:
        parameters, static = typed_parameters(cls, calls, Refusal(cls.__qualname__, ""))
        types = {one.name.removesuffix("_"): _spelled(one.annotation) for one in parameters if one.name not in static}
        op = from_function(cls, f"recorded::{cls.__name__}", samples=calls)
        for row, expected, has_grads in kept:
            torch.testing.assert_close(_outputs_and_grads(op, row, has_grads=has_grads), expected)
        return types, f"[{', '.join(map(_source_of, calls))}]", ""
    except (RuntimeError, AssertionError) as error:
        return types, "", first_line(error).partition(": ")[2] or first_line(error)


def _spelled(annotation: object) -> str:
    text = spell_annotation(annotation).replace("torch.Tensor", "Tensor").replace("typing.", "")
    return re.sub(r"^Optional\[(.*)\]$", r"\1 | None", text)


def _source_of(arguments: Sequence[Any]) -> str:
    """Return the source of arguments like those of a call, with other numbers in its tensors."""

    class Source:
        def __init__(self, tensor: Tensor) -> None:
            shape, dtype = tuple(tensor.shape), tensor.dtype
            make = "rand" if dtype.is_floating_point else "zeros"
            self.text = f"torch.{make}({shape}" + ("" if dtype is torch.float32 else f", dtype={dtype}") + ")"

        def __repr__(self) -> str:
            return self.text

    values = [map_tensors(value, Source) for value in arguments]  # type: ignore[arg-type]  # they are only shown
    return f"({', '.join(map(repr, values))},)"


def _overload(name: str) -> Any:
    namespace, _, op = name.partition("::")
    packet, _, overload = op.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def _outputs_and_grads(call: Callable[..., Any], arguments: Sequence[Any], *, has_grads: bool = True) -> list[Any]:
    """Return the outputs of a call, and the gradients of a weighted sum of them."""
    sample = Sample(*arguments).map(_leaf)
    leaves = [one for one in sample.tensors() if one.requires_grad]
    with kept_random_state(), torch.set_grad_enabled(has_grads and bool(leaves)):
        RandomState.seeded(0).restore()
        outputs = [*Sample(call(*sample.args)).tensors()]
        sums = [(one * _weights(one)).sum().real for one in outputs if one.requires_grad]
        grads = torch.autograd.grad(sums, leaves, allow_unused=True) if sums else ()
    if not has_grads:  # it may have written to its arguments
        outputs += sample.tensors()
    return [*(one.detach() for one in outputs), *(torch.zeros(()) if one is None else one for one in grads)]


def _weights(output: Tensor) -> Tensor:
    return torch.linspace(1, 2, output.numel(), dtype=output.dtype, device=output.device).view(output.shape)


def _has_grads(call: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    try:
        return bool(_outputs_and_grads(call, arguments))
    except RuntimeError:  # no backward is registered, or it writes to an argument, which must not be a leaf
        return False


def _compare(
    path: list[str], modules: list[str], calls: dict[str, list[tuple[list[Any], list[Any], bool]]], ops: dict[str, str]
) -> dict[str, str]:
    sys.path[:0] = path
    for module in modules:
        importlib.import_module(module)
    found = {}
    for name, rows in calls.items():
        module, _, variable = ops.get(name, "").partition(":")
        if not variable and "::" not in name:
            continue
        call = getattr(importlib.import_module(module), variable) if variable else _overload(name)
        try:
            for arguments, expected, has_grads in rows:
                torch.testing.assert_close(_outputs_and_grads(call, arguments, has_grads=has_grads), expected)
            found[name] = ""
        except Exception as error:  # noqa: BLE001 - whatever the new code raises is what differs
            found[name] = f"{type(error).__name__}: {first_line(error)}"
    return found
