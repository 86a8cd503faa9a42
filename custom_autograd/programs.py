"""Exported programs in files: which ops they call, which modules declare those, and whether they are declared here.

A program that was exported keeps its ops by name. Where one is not declared, `torch.export.load` raises an error that
does not name it; `load_program` looks first.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from typing import IO, Any, TypeAlias

import torch
from torch.export import ExportedProgram

from custom_autograd.core.errors import DeclarationError
from custom_autograd.core.messages import format_message, quote
from custom_autograd.registration import registry
from custom_autograd.torch_private.dispatch import OpOverload

File: TypeAlias = "str | os.PathLike[str] | IO[bytes]"

EXTRA_FILE = "custom_autograd.json"
"""Where `save_program` writes, within the archive, which modules declare the ops."""


def save_program(program: ExportedProgram, file: File, *, extra_files: Mapping[str, str] | None = None) -> None:
    """Saves an exported program as `torch.export.save` does, with the names of the modules that declare its ops.

    Args:
        program: what `torch.export.export` returned.
        file: a path, or a binary file to write to.
        extra_files: contents by name, which are saved with it.

    Example:
        >>> import io, torch
        >>> from custom_autograd import load_program, save_program
        >>> program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
        >>> save_program(program, file := io.BytesIO())
        >>> _ = file.seek(0)
        >>> load_program(file).module()(-torch.ones(2))
        tensor([0., 0.])
    """
    modules = json.dumps(modules_of(program))
    torch.export.save(program, file, extra_files={**(extra_files or {}), EXTRA_FILE: modules})


def load_program(file: File) -> ExportedProgram:
    """Loads an exported program, once all of its ops are declared.

    Args:
        file: what `save_program` or `torch.export.save` wrote: a path, or a binary file to read from.

    Returns:
        The program.

    Raises:
        DeclarationError: an op of the program is not declared in this process; the message names it and, for what
            `save_program` wrote, the module to import.
    """
    ops, modules = _read(file)
    missing = [op for op in ops if not _is_declared(op)]
    if missing:
        raise DeclarationError(_not_declared(file, missing, modules))
    return torch.export.load(file)


def modules_of(program: ExportedProgram) -> dict[str, list[str]]:
    """By op of this package that a program calls: the modules whose import declares it."""
    found: dict[str, list[str]] = {}
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            name = node.target.name().partition(".")[0] if isinstance(node.target, OpOverload) else ""
            entry = registry.find_entry(name)
            if entry is not None:
                found[name] = list(entry.modules)
    return found


def _read(file: File) -> tuple[list[str], dict[str, list[str]]]:
    """The ops that the programs in an archive call, and the modules that `save_program` noted."""
    modules: dict[str, list[str]] = {}
    ops: dict[str, None] = {}
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if name.endswith(f"/{EXTRA_FILE}"):
                modules = json.loads(archive.read(name))
            elif "/models/" in name and name.endswith(".json"):
                ops.update(dict.fromkeys(_ops_in(json.loads(archive.read(name)))))
    if not isinstance(file, (str, os.PathLike)):
        file.seek(0)
    return list(ops), modules


def _ops_in(part: Any) -> Iterator[str]:  # Any: any value of a JSON document
    """The qualified names of the ops that nodes call, at any depth."""
    if isinstance(part, list):
        for item in part:
            yield from _ops_in(item)
    elif isinstance(part, dict):
        target = part.get("target")
        words = target.split(".") if isinstance(target, str) else []
        if words[:2] == ["torch", "ops"] and len(words) == 5:  # others are no ops of the dispatcher
            yield f"{words[2]}::{words[3]}"
        for item in part.values():
            yield from _ops_in(item)


def _is_declared(op: str) -> bool:
    namespace, _, name = op.partition("::")
    return hasattr(getattr(torch.ops, namespace), name)


def _not_declared(file: File, missing: list[str], modules: Mapping[str, list[str]]) -> str:
    where = repr(os.fspath(file)) if isinstance(file, (str, os.PathLike)) else "the file"
    known = list(dict.fromkeys(module for op in missing for module in modules.get(op, [])))
    do = f"import {', '.join(known)} before loading" if known else "import the module that declares it before loading"
    return format_message(
        ", ".join(missing),
        f"the exported program in {where} calls ops that are not declared in this process",
        found=None if known else f"no note of the modules that declare {quote(missing)}: save_program writes one",
        do=do,
    )
