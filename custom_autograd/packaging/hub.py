"""Build a package for the Kernel Hub, in the layout that the `kernels` package loads.

OUTPUT/build/torch-stable-abi211-cpu-x86_64-linux/__init__.py    the package, with its libraries in _prebuilt/
                                                 /metadata.json  name, id, version, license, backend

The name of a variant contains the oldest torch whose stable ABI the libraries use; it works with every newer torch.
The namespace of its ops is unique to the build, so that one process can load two versions.
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
from dataclasses import dataclass
from pathlib import Path

from custom_autograd.core.errors import DeclarationError
from custom_autograd.core.messages import quote
from custom_autograd.kernels.compilers import run
from custom_autograd.kernels.portable import toolkit
from custom_autograd.packaging import namespaces
from custom_autograd.packaging.project import Project, build_project, files_of
from custom_autograd.registration.registry import all_records

LEFT_OUT = ("__pycache__", "*.pyc", namespaces.FILE)


@dataclass(frozen=True, slots=True)
class Variant:
    """One build of a package for the Hub: for machines without a GPU, or for those with one.

    Attributes:
        folder: the folder of the build.
        backend: "cpu", or the version of CUDA such as "cu130".
        suffix: the hash of the build, which its namespaces end with.
        identity: the name under which the build is imported.
    """

    folder: Path
    backend: str
    suffix: str
    identity: str


def build_for_hub(project: Project, output: Path, version: int, license_name: str) -> list[Path]:
    """Write a variant of a package for each kind of machine: one without a GPU, and one with it if it has CUDA kernels.

    Args:
        project: the project, whose package imports its own modules relatively.
        output: the folder of the Hub's repository.
        version: the version of the kernel: clients ask for it.
        license_name: the license, as an SPDX expression.

    Returns:
        The folders of the variants.
    """
    _require_relative_imports(project)
    manifests = build_project(project)
    cuda = [path.name for path in files_of([one for one in manifests if "-cuda" in one.name])]
    variants = _variants_of(project, output, has_cuda=bool(cuda))
    for variant in variants:
        _copy_package(project, variant, without=cuda if variant.backend == "cpu" else [])
        _write_metadata(project, variant, version, license_name)
        _require_own_namespaces(variant, project.package)
    return [variant.folder for variant in variants]


def _variants_of(project: Project, output: Path, *, has_cuda: bool) -> list[Variant]:
    """Return the variants that a project has, each with its folder."""
    suffix = _hash_of(project.path)
    identity = f"_{project.package.replace('.', '_')}_{suffix}"
    backends = ["cpu", *([f"cu{toolkit().replace('.', '')}"] if has_cuda else [])]
    abi, machine = f"torch-stable-abi{project.torch.replace('.', '')}", f"{platform.machine()}-{sys.platform}"
    return [Variant(output / "build" / f"{abi}-{one}-{machine}", one, suffix, identity) for one in backends]


def _copy_package(project: Project, variant: Variant, without: list[str]) -> None:
    """Copy the package into the folder of a variant, and write the suffix of its namespaces."""
    shutil.rmtree(variant.folder, ignore_errors=True)
    shutil.copytree(project.path, variant.folder, ignore=shutil.ignore_patterns(*LEFT_OUT, *without))
    (variant.folder / namespaces.FILE).write_text(f"{variant.suffix}\n", encoding="utf-8")


def _write_metadata(project: Project, variant: Variant, version: int, license_name: str) -> None:
    """Write the metadata of a variant, which the `kernels` package reads."""
    metadata = {
        "name": re.sub("[_.]", "-", project.package),
        "id": f"{variant.identity}_{variant.backend}",
        "version": version,
        "license": license_name,
        "python-depends": [],
        "backend": {"type": "cuda" if variant.backend != "cpu" else "cpu"},
    }
    (variant.folder / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")


def _require_relative_imports(project: Project) -> None:
    """Raise if a module imports the package by its name, which differs in the Hub."""
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


def _require_own_namespaces(variant: Variant, package: str) -> None:
    """Raise if a variant, loaded as the Hub loads it, declares an op in a namespace that other versions share."""
    suffix = variant.suffix
    ended = run([sys.executable, "-m", "custom_autograd.packaging.hub", str(variant.folder), variant.identity])
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
    """Return a hash of a package's files, including its libraries."""
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
