"""One source, built for every machine of a platform: torch's stable ABI, and levels of the processor instead of native.

portable(kernel) -> FOLDER/_prebuilt/scale_<hash>.so, one per level, and the manifest by which they are found
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from custom_autograd.kernels import prebuilt
from custom_autograd.kernels.compilers import CPP_FLAGS, HEADERS, PLATFORM, TORCH, CppCompiler, run
from custom_autograd.kernels.cuda import CUDA_FLAGS, CudaCompiler
from custom_autograd.kernels.prebuilt import Manifest, sha256
from custom_autograd.kernels.shared_library import Build, hashed
from custom_autograd.torch_private.versions import release_of

OLDEST = "2.11"
"""The oldest torch that the package supports."""
LEVELS = {"x86_64": tuple(prebuilt.LEVELS), "aarch64": ("armv8-a",)}
"""The levels that are built on each machine; one that has none is built with the compiler's defaults."""
ARCHITECTURES = "8.0;9.0+PTX"
"""GPUs that a library is built for unless TORCH_CUDA_ARCH_LIST says so: Ampere, Hopper and what comes later."""
FOR_OLDER_SYSTEMS = ("-include", str(HEADERS / "custom_autograd" / "older_systems.h"))
"""See NOTE [which systems a built library needs] in that header."""
CUDA_RUNTIME = ("-cudart=shared",)
"""The CUDA runtime that torch has loaded: a static one would need the newest pthreads of the machine that builds."""


@dataclass(frozen=True)
class Source:
    """A source of a package.

    Attributes:
        path: the file.
        root: the folder of the project: what the source includes from it may change with the source.
        flags: the kernel's further flags.
        is_for_cuda: True if nvcc compiles it.
    """

    path: Path
    root: Path
    flags: tuple[str, ...] = ()
    is_for_cuda: bool = False


class PortableCpp(CppCompiler):
    """The C++ compiler for the instructions of one level and every torch since one."""

    def __init__(self, level: str, torch: str) -> None:
        self.level, self.torch = level, torch

    def fingerprint(self) -> str:
        """Return what the library depends on besides the sources: it is the same on every machine that builds."""
        return repr((CPP_FLAGS, self.level, self.torch, platform.machine()))

    def instructions(self, command: Sequence[str]) -> list[str]:
        """Return the flags for the instructions of the level, and for older systems and versions of torch."""
        del command
        return [floor(self.torch), *FOR_OLDER_SYSTEMS, *([f"-march={self.level}"] if self.level else [])]


class PortableCuda(CudaCompiler):
    """NVIDIA's compiler for listed GPUs, whichever are here, and every torch since one."""

    level = ""

    def __init__(self, torch: str) -> None:
        self.torch = torch
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", ARCHITECTURES)

    def fingerprint(self) -> str:
        """Return what the library depends on besides the sources."""
        return repr((CUDA_FLAGS, CUDA_RUNTIME, os.environ["TORCH_CUDA_ARCH_LIST"], self.torch, platform.machine()))

    def flags(self, command: Sequence[str], source: Path) -> list[str]:
        """Return flags for the GPUs of TORCH_CUDA_ARCH_LIST and for older systems."""
        return [*super().flags(command, source), *CUDA_RUNTIME, *FOR_OLDER_SYSTEMS, floor(self.torch)]


@dataclass(frozen=True)
class PortableBuild(Build):
    """A build whose library is named by what the package holds, not by where it is or by whom it is compiled."""

    root: Path

    def files(self) -> dict[str, str]:
        """Return the project's files that the last build read, relative to the source's folder, with their SHA-256."""
        record = json.loads(self._record().read_text(encoding="utf-8"))
        return self._digests(record["files"], self.root)

    def _digests(self, files: Sequence[str], root: Path) -> dict[str, str]:
        paths = sorted({Path(os.path.normpath(file)) for file in files})
        inside = [path for path in paths if path.is_relative_to(root) and not _is_of_others(path, root)]
        return {os.path.relpath(path, self.source.parent): sha256(path) for path in inside}

    def _how(self) -> tuple[str, ...]:
        return repr(prebuilt.movable(self.further, self.source.parent, self.root)), self.compiler.fingerprint()

    def _name(self, files: Sequence[str], programs: Sequence[Sequence[str]], version: str) -> str:
        del programs, version
        headers = sorted(self._digests(files, HEADERS).values())
        return hashed(self.source, repr(self._digests(files, self.root)), repr(headers), *self._how())


def build_portable(source: Source, torch: str = OLDEST) -> Path:
    """Build the libraries of a source, one for each level of the processor; return the manifest next to it."""
    into = source.path.parent / prebuilt.FOLDER
    into.mkdir(exist_ok=True)
    libraries: dict[str, str] = {}
    files: dict[str, str] = {}
    compilers: list[PortableCpp | PortableCuda] = [PortableCpp(level, torch) for level in levels()]
    if source.is_for_cuda:
        compilers = [PortableCuda(torch)]
    with tempfile.TemporaryDirectory() as folder:
        for compiler in compilers:
            build = PortableBuild(source.path.absolute(), source.flags, compiler, Path(folder), source.root.absolute())
            name = build.made()
            files = build.files()
            shutil.copyfile(build.folder / f"{name}.so", into / f"{name}.so")
            libraries[compiler.level] = name
    target = PLATFORM + (f"-cuda{toolkit().partition('.')[0]}" if source.is_for_cuda else "")
    flags = prebuilt.movable(source.flags, source.path.parent.absolute(), source.root.absolute())
    path = prebuilt.manifest_path(source.path, flags, target)
    Manifest(torch, flags, files, libraries).write(path)
    return path


def _is_of_others(path: Path, root: Path) -> bool:
    """Return True for a header that is installed, as in a virtual environment within the project, or is ours."""
    installed = (one for one in (TORCH.parent, HEADERS) if one != root)
    return any(path.is_relative_to(one) for one in installed)


def levels() -> list[str]:
    """Return the levels to build for on this machine, the best first: those that its own processor can try."""
    return [level for level in LEVELS.get(platform.machine(), ("",)) if prebuilt.is_served(level)]


def toolkit() -> str:
    """Return the version of the CUDA toolkit, such as "13.0"."""
    text = run([*CudaCompiler().find(Path("nvcc")), "--version"]).stdout
    return text.partition("release ")[2].partition(",")[0]


def floor(torch: str) -> str:
    """Return the flag that keeps torch's headers to what one version of torch has, and all later ones."""
    major, minor = release_of(torch)
    return f"-DTORCH_TARGET_VERSION=0x{major:02x}{minor:02x}000000000000ULL"
