"""Exported programs in files: which ops they call, which modules declare those, and whether they are declared here.

A program that was exported keeps its ops by name. Where one is not declared, `torch.export.load` raises an error that
does not name it; `load_program` looks first.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any, TypeAlias

import torch
from torch.export import ExportedProgram

from custom_autograd.core.errors import DeclarationError
from custom_autograd.core.messages import quote, show
from custom_autograd.execution.functional_op import FUNCTIONAL
from custom_autograd.registration import registry
from custom_autograd.registration.dispatcher_library import SUFFIX
from custom_autograd.schema.names import DEFAULT, Name
from custom_autograd.torch_private.dispatch import OpOverload, is_defined

File: TypeAlias = "str | os.PathLike[str] | IO[bytes]"

EXTRA_FILE = "custom_autograd.json"
"""Where `save_program` writes, within the archive, which modules declare the ops."""


def save_program(program: ExportedProgram, file: File, *, extra_files: Mapping[str, str] | None = None) -> None:
    """Save an exported program as `torch.export.save` does, with the names of the modules that declare its ops.

    Args:
        program: what `torch.export.export` returned.
        file: a path, or a binary file to write to.
        extra_files: contents by name, which are saved with it.

    Raises:
        TypeError: the program is none, the file cannot be written to, or the extra files are not text.
        ValueError: an extra file has the name under which the modules are saved.

    Example:
        >>> import io, torch
        >>> from custom_autograd import load_program, save_program
        >>> program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
        >>> save_program(program, file := io.BytesIO())
        >>> _ = file.seek(0)
        >>> load_program(file).module()(-torch.ones(2))
        tensor([0., 0.])
    """
    if not isinstance(program, ExportedProgram):
        raise TypeError(f"save_program takes what torch.export.export returns, and not {show(program)}.")
    _check_file("save_program", file, "write")
    _check_extra_files(extra_files)
    modules = json.dumps(modules_of(program))
    torch.export.save(program, file, extra_files={**(extra_files or {}), EXTRA_FILE: modules})


def load_program(file: File) -> ExportedProgram:
    """Load an exported program, once all of its ops are declared.

    Neither loading nor running the program imports a module: what it names must have been imported.

    Args:
        file: what `save_program` or `torch.export.save` wrote: a path, or a binary file to read from.

    Returns:
        The program.

    Raises:
        DeclarationError: an op of the program is not declared in this process; the message names it and, for what
            `save_program` wrote, the module to import.
        TypeError: the file cannot be read from.
        ValueError: there is no archive in it, or a damaged one.
    """
    _check_file("load_program", file, "read")
    ops, modules = _read(file)
    missing = [str(op) for op in ops if not is_defined(op.namespace, op.name, op.overload)]
    if missing:
        raise _not_declared(file, missing, modules)
    return torch.export.load(file)


def modules_of(program: ExportedProgram) -> dict[str, list[str]]:
    """Return the modules whose import declares each op of this package that a program calls, by op."""
    found: dict[str, list[str]] = {}
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            for op in _overloads_in((node.target, node.args, node.kwargs)):
                name = op.name()
                own = name.replace(SUFFIX, "", 1).replace(FUNCTIONAL, "", 1)
                record = registry.find_record(name) or registry.find_record(own)
                if record is not None:
                    found[name] = list(record.declaration.modules)
    return found


def _overloads_in(part: Any) -> Iterator[OpOverload]:  # Any: what a node has, as below
    """Yield the ops in a node: what it calls, or what it hands to an op of ops, such as auto_functionalized."""
    if isinstance(part, OpOverload):
        yield part
    elif isinstance(part, (list, tuple, Mapping)):
        for item in part.values() if isinstance(part, Mapping) else part:
            yield from _overloads_in(item)


def _check_file(function: str, file: object, method: str) -> None:
    is_file = isinstance(file, (str, os.PathLike)) or callable(getattr(file, method, None))
    if not is_file or isinstance(file, io.TextIOBase):
        raise TypeError(f"{function} takes a path, or a binary file to {method}, and not {show(file)}.")


def _check_extra_files(extra_files: object) -> None:
    if extra_files is None:
        return
    if not isinstance(extra_files, Mapping) or not all(
        isinstance(one, str) for pair in extra_files.items() for one in pair
    ):
        raise TypeError(f"save_program takes extra_files= as text by name, and not {show(extra_files)}.")
    if EXTRA_FILE in extra_files:
        raise ValueError(f"save_program writes {EXTRA_FILE!r} itself: give the extra file another name.")


def _read(file: File) -> tuple[list[Name], dict[str, list[str]]]:
    """Return the ops that the programs in an archive call, and the modules that `save_program` noted."""
    try:
        with zipfile.ZipFile(file) as archive:
            ops, modules = _read_archive(archive)
    except (zipfile.BadZipFile, zlib.error, json.JSONDecodeError, UnicodeDecodeError) as error:
        problem = f"There is no exported program in {_where(file)}, or it is damaged: {error}."
        raise ValueError(f"{problem} load_program reads what save_program or torch.export.save wrote.") from error
    if not isinstance(file, (str, os.PathLike)):
        file.seek(0)
    return ops, modules


def _read_archive(archive: zipfile.ZipFile) -> tuple[list[Name], dict[str, list[str]]]:
    modules: dict[str, list[str]] = {}
    ops: dict[Name, None] = {}
    for name in archive.namelist():
        if name.endswith(f"/{EXTRA_FILE}"):
            modules = json.loads(archive.read(name))
        elif "/models/" in name and name.endswith(".json"):
            ops.update(dict.fromkeys(_ops_in(json.loads(archive.read(name)))))
    return list(ops), modules


def _ops_in(part: Any) -> Iterator[Name]:  # Any: any value of a JSON document
    """Yield the qualified names of the ops that nodes call, or hand to others, at any depth."""
    if isinstance(part, list):
        for item in part:
            yield from _ops_in(item)
    elif isinstance(part, dict):
        for target in (part.get("target"), part.get("as_operator")):
            words = target.split(".") if isinstance(target, str) else []
            if words[:2] == ["torch", "ops"] and len(words) == 5:  # others are not ops of the dispatcher
                yield Name(words[2], words[3], words[4] if words[4] != DEFAULT else "")
        for item in part.values():
            yield from _ops_in(item)


def _where(file: File) -> str:
    return repr(os.fspath(file)) if isinstance(file, (str, os.PathLike)) else "the file"


def _not_declared(file: File, missing: list[str], modules: Mapping[str, list[str]]) -> DeclarationError:
    known = list(dict.fromkeys(module for op in missing for module in modules.get(op, [])))
    do = f"import {', '.join(known)} before loading" if known else "import the module that declares it before loading"
    return DeclarationError(
        ", ".join(missing),
        f"the exported program in {_where(file)} calls ops that are not declared in this process",
        found=None if known else f"no note of the modules that declare {quote(missing)}: save_program writes one",
        do=do,
    )
