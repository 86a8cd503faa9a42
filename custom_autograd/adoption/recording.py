"""Records what a script calls, and compares the results of old and new code on these calls.

record     the old code: calls of each Function and op, their outputs and gradients, and facts about the Functions
compare    the new code, on the same arguments

Each runs in a process of its own, since both declare ops of the same names.
"""

from __future__ import annotations

import importlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from custom_autograd.adoption.forward_calls import Function, with_defaults
from custom_autograd.adoption.function_ops import from_function
from custom_autograd.adoption.function_types import typed_parameters
from custom_autograd.adoption.module_rewriting import RecordedFunction
from custom_autograd.adoption.source_files import write_source
from custom_autograd.core.messages import first_line
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.schema.annotations import Refusal
from custom_autograd.schema.arguments import spell_annotation
from custom_autograd.schema.samples import Sample, map_tensors
from custom_autograd.torch_private.verification import name_of_overload
from custom_autograd.values.random_state import RandomState, kept_random_state
from custom_autograd.verification.harness.recorder import Called, Recorder, kind_of
from custom_autograd.verification.processes.process import ParentPipe
from custom_autograd.verification.processes.recorded_scripts import dump, load, run_apart, run_script


@dataclass(frozen=True, slots=True)
class Result:
    """One recorded call.

    Attributes:
        sample: its arguments.
        tensors: its outputs, then its gradients, or the arguments that it may have written to.
        has_grads: True if it was differentiated.
    """

    sample: Sample
    tensors: list[Tensor]
    has_grads: bool


@dataclass(frozen=True, slots=True)
class Recorded:
    """Results of a script.

    Attributes:
        modules: the modules that it imported.
        results: by name of a Function or an op; those whose arguments cannot be pickled are left out.
        functions: facts by name of a Function.
    """

    modules: tuple[str, ...]
    results: Mapping[str, Sequence[Result]]
    functions: Mapping[str, RecordedFunction]


def record(root: Path, modules: Iterable[str], script: Path) -> Recorded:
    """Return what a script, or tests, call of the Functions in some modules below a root, and of all ops."""
    (sent,) = run_apart(partial(_record, str(root), tuple(modules), str(script)), f"--record {script}")
    found: Recorded = load(sent)  # type: ignore[arg-type]  # bytes
    return found


def compare(root: Path, sources: Mapping[Path, str], recorded: Recorded, ops: Mapping[str, str]) -> dict[str, str]:
    """Return how new sources differ from what was recorded, by name of a Function or an op; empty if they agree.

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
            write_source(Path(folder) / path.relative_to(root), text)
        work = partial(_compare, [folder, str(root)], recorded.modules, dump(recorded.results), dict(ops))
        (found,) = run_apart(work, "migrate, the new code")
    return found  # type: ignore[return-value]  # what _compare sends


# --------------------------------------------------------------------------------------------- in the other processes


def _record(root: str, modules: tuple[str, ...], script: str, send: ParentPipe) -> None:
    def choose(called: Called) -> object:
        if isinstance(called, type):
            return called if called.__module__ in modules else None
        return None if name_of_overload(called).partition("::")[0] in OPS_OF_TORCH else called

    sys.path.insert(0, root)
    recorder = Recorder(choose, kind=partial(kind_of, sizes=inf, numbers=inf))  # all sizes and numbers are compared
    with recorder.functions(), recorder.ops():
        run_script(script)
    results: dict[str, list[Result]] = {}
    functions: dict[str, RecordedFunction] = {}
    for called, samples in cast(Mapping[Called, Sequence[Sample]], recorder.samples()).items():
        if isinstance(called, type):
            name = called.__qualname__
            results[name] = _results(called.apply, samples)
            functions[name] = _facts(called, results[name])
        else:
            results[name_of_overload(called)] = _results(called, samples)
    loaded = tuple([module for module in modules if module in sys.modules])  # others may need what is not installed
    send(dump(Recorded(loaded, {name: row for name, row in results.items() if _can_be_stored(row)}, functions)))


OPS_OF_TORCH = frozenset({"aten", "prim", "prims", "profiler"})


def _compare(path: list[str], modules: Iterable[str], results: bytes, ops: Mapping[str, str], send: ParentPipe) -> None:
    sys.path[:0] = path
    for module in modules:
        importlib.import_module(module)
    found = {}
    for name, rows in load(results).items():
        module, _, variable = ops.get(name, "").partition(":")
        if not variable and "::" not in name:
            continue
        try:
            _check(getattr(importlib.import_module(module), variable) if variable else _overload(name), rows)
            found[name] = ""
        except Exception as error:  # noqa: BLE001 - whatever the new code raises is what differs
            found[name] = f"{type(error).__name__}: {first_line(error)}"
    send(found)


def _overload(name: str) -> Callable[..., Any]:
    namespace, _, op = name.partition("::")
    packet, _, overload = op.partition(".")
    found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    return found


def _can_be_stored(results: Sequence[Result]) -> bool:
    """Return False for calls with arguments such as a lambda, which another process cannot have."""
    try:
        dump(results)
    except Exception:  # noqa: BLE001 - an object of any class
        return False
    return True


# ----------------------------------------------------------------------------------------------------- calls of an op


def _results(call: Callable[..., Any], samples: Sequence[Sample]) -> list[Result]:
    has_grads = all(_has_grads(call, sample) for sample in samples)
    return [Result(sample, _outputs_and_grads(call, sample, has_grads=has_grads), has_grads) for sample in samples]


def _has_grads(call: Callable[..., Any], sample: Sample) -> bool:
    try:
        return bool(_outputs_and_grads(call, sample, has_grads=True))
    except RuntimeError:  # no backward is registered, or it writes to an argument, which must not be a leaf
        return False


def _check(call: Callable[..., Any], results: Sequence[Result]) -> None:
    """Raise if a call returns other outputs or gradients."""
    for one in results:
        found = _outputs_and_grads(call, one.sample, has_grads=one.has_grads)
        torch.testing.assert_close(found, one.tensors)


def _outputs_and_grads(call: Callable[..., Any], sample: Sample, *, has_grads: bool) -> list[Tensor]:
    """Return the outputs of a call, and the gradients of a weighted sum of them."""
    sample = sample.map(lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad))
    leaves = [one for one in sample.tensors() if one.requires_grad]
    with kept_random_state(), torch.set_grad_enabled(has_grads and bool(leaves)):
        RandomState.seeded(0).restore()
        outputs = [*Sample(call(*sample.args, **sample.kwargs)).tensors()]
        sums = [(one * _weights(one)).sum().real for one in outputs if one.requires_grad]
        grads = torch.autograd.grad(sums, leaves, allow_unused=True) if sums else ()
    if not has_grads:  # it may have written to its arguments
        outputs += sample.tensors()
    return [*(one.detach() for one in outputs), *(torch.zeros(()) if one is None else one for one in grads)]


def _weights(output: Tensor) -> Tensor:
    return torch.linspace(1, 2, output.numel(), dtype=output.dtype, device=output.device).view(output.shape)


# ------------------------------------------------------------------------------------------------ facts of a Function


def _facts(function: Function, results: Sequence[Result]) -> RecordedFunction:
    """Return the annotations of forward, and the source of samples for from_function if its op agrees."""
    types: dict[str, str] = {}
    try:
        calls = [with_defaults(function, *one.sample.args, **one.sample.kwargs) for one in results]
        parameters, static = typed_parameters(function, calls, Refusal(function.__qualname__, ""))
        types = {one.name.removesuffix("_"): _spelled(one.annotation) for one in parameters if one.name not in static}
        _check(from_function(function, f"recorded::{function.__name__}", samples=calls), results)
        return RecordedFunction(types, f"[{', '.join(map(_source_of, calls))}]")
    except (RuntimeError, AssertionError) as error:
        return RecordedFunction(types, reason=first_line(error).partition(": ")[2] or first_line(error))


def _spelled(annotation: object) -> str:
    text = spell_annotation(annotation).replace("torch.Tensor", "Tensor").replace("typing.", "")
    return re.sub(r"^Optional\[(.*)\]$", r"\1 | None", text)


def _source_of(arguments: Sequence[Any]) -> str:
    """Return the source of arguments like those of a call, with other numbers in its tensors."""
    values = [map_tensors(value, _like) for value in arguments]  # type: ignore[arg-type]  # they are only shown
    return f"({', '.join(map(repr, values))},)"


def _like(tensor: Tensor) -> _Source:
    make = "rand" if tensor.dtype.is_floating_point else "zeros"
    dtype = "" if tensor.dtype is torch.float32 else f", dtype={tensor.dtype}"
    return _Source(f"torch.{make}({tuple(tensor.shape)}{dtype})")


class _Source(str):
    """Source of a value, in whose place it is shown."""

    __repr__ = str.__str__
