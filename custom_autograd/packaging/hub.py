"""A build for the Kernel Hub, in the layout that the `kernels` package loads.

OUTPUT/build/torch-stable-abi211-cpu-x86_64-linux/__init__.py    the package, with its libraries in _prebuilt/
                                                 /metadata.json  name, id, version, license, backend

A variant names the oldest torch whose stable ABI the libraries use, and serves every newer one. Its ops are in a
namespace that no other build has, so that one process can load two versions.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import platform
import re
import shutil
import sys
from pathlib import Path

from custom_autograd.core.errors import DeclarationError
from custom_autograd.core.messages import quote
from custom_autograd.kernels.compilers import run
from custom_autograd.kernels.portable import toolkit
from custom_autograd.packaging import namespaces
from custom_autograd.packaging.project import Project, build_project, files_of
from custom_autograd.registration.registry import all_records

LEFT_OUT = ("__pycache__", "*.pyc", namespaces.FILE)


def build_for_hub(project: Project, output: Path, version: int, license_name: str) -> list[Path]:
    """Write a variant of a package for each kind of machine: one without a GPU, and one with it if it has CUDA kernels.

    Args:
        project: the project, whose package imports its own modules relatively.
        output: the folder of the Hub's repository.
        version: the version of the kernel: clients ask for it.
        license_name: the license, as an SPDX expression.

    Returns:
        The folders of the variants.

    Raises:
        KernelUnavailable: a source cannot be built.
        DeclarationError: a module imports the package by its name, or an op has a fixed namespace.
    """
    _require_relative_imports(project)
    manifests = build_project(project)
    cuda = [path.name for path in files_of([one for one in manifests if "-cuda" in one.name])]
    suffix = _hash_of(project.path)
    identity = f"_{project.package.replace('.', '_')}_{suffix}"
    backends = ["cpu", *([f"cu{toolkit().replace('.', '')}"] if cuda else [])]
    written = []
    for backend in backends:
        variant = f"torch-stable-abi{project.torch.replace('.', '')}-{backend}-{platform.machine()}-{sys.platform}"
        folder = output / "build" / variant
        shutil.rmtree(folder, ignore_errors=True)
        left_out = shutil.ignore_patterns(*LEFT_OUT, *(cuda if backend == "cpu" else []))
        shutil.copytree(project.path, folder, ignore=left_out)
        (folder / namespaces.FILE).write_text(f"{suffix}\n", encoding="utf-8")
        metadata = {
            "name": re.sub("[_.]", "-", project.package),
            "id": f"{identity}_{backend}",
            "version": version,
            "license": license_name,
            "python-depends": [],
            "backend": {"type": "cuda" if backend != "cpu" else "cpu"},
        }
        (folder / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
        _require_own_namespaces(folder, project.package, identity)
        written.append(folder)
    return written


def _require_relative_imports(project: Project) -> None:
    """Raise if a module imports the package by a name that it does not have in the Hub."""
    for path in sorted(project.path.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [f"{node.module}.{one.name}" for one in node.names]
            if any(f"{name}.".startswith(f"{project.package}.") for name in names):
                raise DeclarationError(
                    project.package,
                    "a module imports the package by its name, under which the Kernel Hub does not load it",
                    found=ast.unparse(node),
                    rule=f"{path}:{getattr(node, 'lineno', 0)}",
                    do="import relatively: from . import ops",
                )


def _require_own_namespaces(folder: Path, package: str, identity: str) -> None:
    """Raise if the package, as the Hub loads it, declares an op whose namespace is that of every version."""
    suffix = identity.rpartition("_")[2]
    ended = run([sys.executable, "-m", "custom_autograd.packaging.hub", str(folder), identity])
    _, mark, names = ended.stdout.rpartition(MARK)
    if not mark:
        problem, do = "the package cannot be loaded from its folder", "correct it: the Kernel Hub loads it by its path"
        raise DeclarationError(package, problem, found=ended.stdout[-800:], do=do)
    fixed = [name for name in names.split() if not name.partition("::")[0].endswith(f"_{suffix}")]
    if fixed:
        raise DeclarationError(
            package,
            "two versions of the package could not be loaded in one process: ops have a fixed namespace",
            expected=f"'{fixed[0].partition('::')[0]}_{suffix}::...', which is new in each build",
            found=quote(fixed),
            do=f'take custom_autograd.packaging.namespace("{package}", __file__) as their namespace',
        )


def _hash_of(folder: Path) -> str:
    """Return a hash of a package's files, its libraries among them."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(repr((path.relative_to(folder).as_posix(), path.read_bytes())).encode())
    return digest.hexdigest()[:10]


def main(folder: str, name: str) -> None:
    """Load a variant as the `kernels` package does, and print the ops that it declares."""
    spec = importlib.util.spec_from_file_location(name, Path(folder, "__init__.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    declared = [(str(record.declaration.name), record.declaration.function.__module__) for record in all_records()]
    own = [op for op, where in declared if where == name or where.startswith(f"{name}.")]
    print(MARK, *own)  # noqa: T201 - a program: its output is its result


MARK = "custom_autograd: ops"

if __name__ == "__main__":
    main(*sys.argv[1:])
