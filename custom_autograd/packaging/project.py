"""Read the build options of a project from its pyproject.toml, and build the libraries of its kernels.

[tool.custom_autograd.build]
package = "myops"          the package that declares the kernels; by default the only package of the project
folder = "src"             the folder that contains the package; by default "src", or "." if there is no "src"
torch = "2.11"             the oldest version of torch that the libraries support
cuda = true                builds .cu sources; CUSTOM_AUTOGRAD_BUILD_CUDA=0 or 1 takes precedence
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from custom_autograd.core.errors import DeclarationError
from custom_autograd.core.messages import advise, quote, show
from custom_autograd.core.toml import parse_toml
from custom_autograd.kernels import prebuilt
from custom_autograd.kernels.cuda import CudaCompiler
from custom_autograd.kernels.portable import OLDEST, build_portable
from custom_autograd.packaging.sources import find_sources
from custom_autograd.torch_private.versions import release_of

FILE = "pyproject.toml"
TABLE = "tool.custom_autograd.build"
CUDA = "CUSTOM_AUTOGRAD_BUILD_CUDA"
NO_NVCC = f"install the CUDA toolkit, set NVCC or CUDA_HOME, or build without CUDA: {CUDA}=0"


@dataclass(frozen=True, slots=True)
class Project:
    """Build options of a project, with defaults filled in.

    Attributes:
        root: the folder of pyproject.toml.
        package: the name of the package.
        folder: the folder that contains the package, relative to the root.
        torch: the oldest version of torch that the libraries support.
        cuda: True if CUDA sources are built.
    """

    root: Path
    package: str
    folder: str
    torch: str = OLDEST
    cuda: bool = True

    @property
    def path(self) -> Path:
        """Return the folder of the package."""
        return self.root / self.folder / self.package.replace(".", "/")


def read_project(root: Path) -> Project:
    """Return the project of a folder; raise OSError if it has no pyproject.toml."""
    table = _table((root / FILE).read_text(encoding="utf-8"))
    _require_types(table)
    folder = table.setdefault("folder", "src" if (root / "src").is_dir() else ".")
    _require_values(table, root)
    if "package" not in table:
        table["package"] = _only_package(root, folder)
    if os.environ.get(CUDA):
        table["cuda"] = _is_cuda_wanted()
    return Project(root, **table)


def _require_types(table: dict[str, Any]) -> None:  # Any: whatever TOML holds
    """Raise if the table has an unknown key or a value of another type."""
    known = {one.name: str(one.type) for one in fields(Project) if one.name != "root"}
    for key, value in table.items():
        if key not in known:
            raise DeclarationError(FILE, f"{key!r} is not an option of [{TABLE}]", do=advise(key, known))
        if type(value).__name__ != known[key]:
            raise DeclarationError(FILE, f"{key!r} has another type", expected=known[key], found=show(value), do=DO)


def _only_package(root: Path, folder: str) -> str:
    """Return the name of the only package in a folder."""
    found = sorted(path.parent.name for path in (root / folder).glob("*/__init__.py"))
    if len(found) != 1:
        raise DeclarationError(
            FILE,
            "it does not say which package declares the kernels",
            expected=f"one folder with an __init__.py in '{folder}'",
            found=quote(found),
            do=f"add [{TABLE}] with package = 'its name', and folder = 'where it is'",
        )
    return found[0]


def _is_cuda_wanted() -> bool:
    """Return the value of the environment variable for CUDA."""
    if os.environ[CUDA] not in ("0", "1"):
        problem = f"{CUDA} does not say whether to build with CUDA"
        raise DeclarationError(FILE, problem, expected="'0' or '1'", found=show(os.environ[CUDA]), do="set it so")
    return os.environ[CUDA] == "1"


def _require_values(table: dict[str, Any], root: Path) -> None:  # Any: whatever TOML holds
    """Raise if a value of the table is out of range."""
    version, package, here = table.get("torch", OLDEST), table.get("package", "package"), torch.__version__
    if not re.fullmatch(r"\d+\.\d+", version):
        raise DeclarationError(FILE, "'torch' is not a version", expected="'major.minor'", found=show(version), do=DO)
    if not release_of(OLDEST) <= release_of(version) <= release_of(here):
        expected = f"'{OLDEST}' or newer, and not newer than torch {here}, which builds them"
        raise DeclarationError(
            FILE, "no library can serve 'torch' from that version on", expected=expected, found=show(version), do=DO
        )
    if not all(part.isidentifier() for part in package.split(".")):
        expected = "a name that can be imported, such as 'myops' or 'mylib.ops'"
        raise DeclarationError(FILE, "'package' is not a package", expected=expected, found=show(package), do=DO)
    if not (root / table["folder"]).resolve().is_relative_to(root.resolve()):
        problem = "'folder' is outside of the project"
        raise DeclarationError(FILE, problem, expected=f"a folder in {root}", found=show(table["folder"]), do=DO)


def build_project(project: Project) -> list[Path]:
    """Build the libraries of a project's kernels next to their sources, in place of earlier ones; return manifests."""
    sources = find_sources(project.package, project.root / project.folder, project.root)
    wanted = [source for source in sources if project.cuda or not source.is_for_cuda]
    for source in wanted:
        if source.is_for_cuda:
            CudaCompiler().find(source.path, do=NO_NVCC)
    for folder in {source.path.parent for source in sources}:
        shutil.rmtree(folder / prebuilt.FOLDER, ignore_errors=True)
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # the compilers are processes
        return list(threads.map(lambda source: build_portable(source, project.torch), wanted))


def files_of(manifests: list[Path]) -> Iterator[Path]:
    """Yield each manifest, followed by the libraries that it lists."""
    for path in manifests:
        yield path
        for name in prebuilt.Manifest.read(path).libraries.values():
            yield path.parent / f"{name}.so"


def _table(text: str) -> dict[str, Any]:  # Any: whatever TOML holds
    found = parse_toml(text, FILE, TABLE, DeclarationError)
    for key in TABLE.split("."):
        found = found.get(key, {})
        if not isinstance(found, dict):
            problem = f"[{TABLE}] cannot be read: {key!r} is not a table"
            raise DeclarationError(FILE, problem, expected="a table", found=show(found), do=f"write it as [{TABLE}]")
    return dict(found)


DO = f"correct it; the options are {quote(one.name for one in fields(Project) if one.name != 'root')}"
