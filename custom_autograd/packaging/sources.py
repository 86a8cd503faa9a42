"""Find the sources of a package's kernels, in another process because importing the package runs its code.

python -m custom_autograd.packaging.sources PACKAGE FOLDER -> a JSON list of [path, flags, is_for_cuda]

FOLDER is put first on the path. The package and its modules are imported, which declares their kernels.
"""

from __future__ import annotations

import gc
import importlib
import json
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.kernels.compilers import TORCH, indented, run
from custom_autograd.kernels.cpp import CppKernel
from custom_autograd.kernels.cuda import CudaKernel
from custom_autograd.kernels.portable import Source

MARK = "custom_autograd: sources "


def find_sources(package: str, folder: Path, project: Path) -> list[Source]:
    """Return the sources of all C++ and CUDA kernels that a package declares.

    Args:
        package: the name of the package.
        folder: the folder that it is imported from, such as "src".
        project: the folder of pyproject.toml; libraries depend on the files in it that their sources include.
    """
    root = folder.absolute() / package.replace(".", "/")
    if not root.is_dir():
        do = "correct 'package' or 'folder' in [tool.custom_autograd.build]"
        raise KernelUnavailable(package, "there is no such package", expected=f"a folder {root}", do=do)
    command = [sys.executable, "-m", "custom_autograd.packaging.sources", package, str(folder)]
    ended = run(command)
    _, mark, found = ended.stdout.rpartition(MARK)
    if not mark:
        raise KernelUnavailable(
            package,
            "the package cannot be imported, so its kernels are not known",
            found=indented(ended.stdout.strip().splitlines()[-12:]),
            do="correct it; what it imports has to be installed where it is built (build-system.requires)",
        )
    rows = json.loads(found)
    own = (row for row in rows if not _is_of_others(row[0], project))
    return list(dict.fromkeys(_source_of(package, root, project.absolute(), row) for row in own))


def _source_of(package: str, root: Path, project: Path, row: tuple[str, list[str], bool]) -> Source:
    """Return a source by its path in the package, with symbolic links resolved."""
    path = Path(row[0])
    real, real_root = path.parent.resolve() / path.name, root.resolve()
    if not real.is_relative_to(real_root):
        raise KernelUnavailable(
            package,
            "the source of a kernel is outside of the package, whose wheel would have no library of it",
            expected=f"a file in {root}",
            found=str(path),
            do="move it into the package, and what it includes too",
        )
    return Source(root / real.relative_to(real_root), project, tuple(row[1]), row[2])


def _is_of_others(path: str, project: Path) -> bool:
    """Return True if a source belongs to a package that this one imports."""
    real = Path(path).parent.resolve()
    return not real.is_relative_to(project.resolve()) or real.is_relative_to(TORCH.parent.resolve())


def main(package: str, folder: str) -> None:
    """Print the sources of a package."""
    sys.path.insert(0, folder)
    module = importlib.import_module(package)
    names = [one.name for one in pkgutil.walk_packages(module.__path__, f"{package}.")]
    for name in dict.fromkeys([*names, *_with_kernels(package, Path(folder))]):
        if not name.endswith("__main__"):
            importlib.import_module(name)
    found = [one for one in gc.get_objects() if isinstance(one, CppKernel)]
    rows = {(str(one.source), one.flags, isinstance(one, CudaKernel)) for one in found}
    print(f"{MARK}{json.dumps(sorted(rows))}")  # noqa: T201 - a program: its output is its result


def _with_kernels(package: str, folder: Path) -> Iterator[str]:
    """Yield the modules that mention kernels: walk_packages skips folders without an __init__.py."""
    for path in sorted((folder / package.replace(".", "/")).rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        text = path.read_text(encoding="utf-8", errors="replace")
        if all(part.isidentifier() for part in parts) and ("cpp_kernel(" in text or "cuda_kernel(" in text):
            yield ".".join(parts).removesuffix(".__init__")


if __name__ == "__main__":
    main(*sys.argv[1:])
