"""Libraries that a package brings along, found by the contents of their source: no compiler and no cache are needed.

FOLDER/scale.cpp                              the source, if the package has it
FOLDER/_prebuilt/scale.cpp.linux_x86_64.json  what was built of it, and of which files: see `Manifest`
FOLDER/_prebuilt/scale_<hash>.so              a library for each level of the processor

A library is built against torch's stable ABI, so that it serves every torch since the one that the manifest names, and
every Python. `portable.py` writes these files for `custom-autograd build` and the hooks of hatchling and setuptools.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import torch

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.core.messages import quote
from custom_autograd.kernels import native_kernels
from custom_autograd.kernels.cache_files import cache_folder, require_writable, why_unsafe
from custom_autograd.kernels.compilers import failure_of, indented
from custom_autograd.torch_private.versions import release_of

FOLDER = "_prebuilt"
HERE = "{folder}"
"""What stands for the folder of the source in the flags of a manifest."""
WITH_PATH = re.compile(r"(-[\w-]*=?|)(/.*)")
"""A flag with an absolute path: -I/opt/include."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was built of one source.

    Attributes:
        torch: the first version of torch that the libraries serve, such as "2.11".
        flags: further flags of the compiler; see `movable`.
        files: the source and the headers of the package that it includes, relative to its folder, with their SHA-256.
        libraries: for each level of the processor, such as "x86-64-v3", the best first: the name of the library, which
            is the namespace too.
        digests: the SHA-256 of libraries that nothing may change, by name. Others have none: tools that make manylinux
            wheels change what a library links.
    """

    torch: str
    flags: list[str]
    files: dict[str, str]
    libraries: dict[str, str]
    digests: dict[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the manifest; the same contents give the same bytes."""
        path.write_text(json.dumps(asdict(self), indent=1, sort_keys=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Return the manifest of a file; raise KernelUnavailable if it is not one."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise _damaged(path, str(error)) from error
        except TypeError as error:
            raise _damaged(path, "it has other entries than a manifest") from error

    def is_of(self, folder: Path) -> bool:
        """Return True if no file was changed since the build; a package without its sources counts as unchanged."""
        return all(not (folder / name).exists() or sha256(folder / name) == its for name, its in self.files.items())


def manifest_path(source: Path, flags: Sequence[str], target: str) -> Path:
    """Return where the manifest of a source lies: one for each set of flags and each target, such as "linux_x86_64"."""
    marked = f".{hashlib.sha256(repr(tuple(flags)).encode()).hexdigest()[:8]}" if flags else ""
    return source.parent / FOLDER / f"{source.name}{marked}.{target}.json"


def movable(flags: Sequence[str], folder: Path, root: Path) -> list[str]:
    """Return flags with paths within a root relative to the folder of the source, as they are wherever that lies."""
    return [
        f"{path[1]}{HERE}/{os.path.relpath(path[2], folder)}" if path and Path(path[2]).is_relative_to(root) else flag
        for flag in flags
        for path in [WITH_PATH.fullmatch(flag)]
    ]


def _manifests(source: Path, flags: Sequence[str], target: str) -> Iterator[Path]:
    """Yield the manifest of a source with these flags, whose paths may be relative to the source in it."""
    if (exact := manifest_path(source, flags, target)).exists():
        yield exact
    elif any(WITH_PATH.fullmatch(flag) for flag in flags):
        given = [os.path.normpath(flag) for flag in flags]
        for path in sorted((source.parent / FOLDER).glob(f"{glob.escape(source.name)}.*.{target}.json")):
            own = [flag.replace(HERE, str(source.parent)) for flag in Manifest.read(path).flags]
            if [os.path.normpath(flag) for flag in own] == given:
                yield path


def find(source: Path, flags: Sequence[str], targets: Sequence[str]) -> tuple[str, Path] | None:
    """Return namespace and path of the library that comes with a source; None if none does, or the source is another.

    Args:
        source: the source, which need not exist.
        flags: the kernel's further flags, as they were given to the build.
        targets: what the library may be built for, the preferred one first: see `CppCompiler.targets`.
    """
    if not (source.parent / FOLDER).is_dir():
        return None
    paths = (one for target in targets for one in _manifests(source, flags, target))
    path = next(paths, None)
    if path is None:
        return None
    manifest = Manifest.read(path)
    if not manifest.is_of(source.parent):
        return None
    if release_of(torch.__version__) < release_of(manifest.torch):  # all that matters to the stable ABI
        problem = "the library that comes with the kernel is for a newer torch"
        do = f"install torch {manifest.torch} or newer, or a C++ compiler and the package's source distribution"
        expected, found = f"torch {manifest.torch} or newer", torch.__version__
        raise KernelUnavailable(source.name, problem, expected=expected, found=found, do=do)
    return _chosen(source, path, manifest)


def targets_beside(source: Path) -> list[str]:
    """Return the platforms for which the package brings libraries of a source: "linux_aarch64"."""
    names = (source.parent / FOLDER).glob(f"{glob.escape(source.name)}.*.json")
    pattern = re.compile(rf"{re.escape(source.name)}\.([0-9a-f]{{8}}\.)?(?P<target>.*)\.json")
    found = [pattern.fullmatch(path.name) for path in names]
    return sorted({one["target"] for one in found if one is not None})


def _chosen(source: Path, path: Path, manifest: Manifest) -> tuple[str, Path]:
    level = next((one for one in manifest.libraries if is_served(one)), None)
    if level is None:
        problem = "the libraries that come with the kernel use instructions that this processor does not have"
        do = "install a C++ compiler and the package's source distribution"
        raise KernelUnavailable(source.name, problem, found=quote(list(manifest.libraries)), rule=str(path), do=do)
    name = manifest.libraries[level]
    library = path.parent / f"{name}.so"
    if not library.exists():
        raise _damaged(library, "there is no such file")
    if manifest.digests.get(name, digest := sha256(library)) != digest:
        raise _damaged(library, "it is not what was built")
    failure = _tried(library, digest)
    if failure:
        problem = "the library that comes with the kernel cannot be used with this torch"
        do = "install a C++ compiler and the package's source distribution: the kernel is built at its first call"
        raise KernelUnavailable(source.name, problem, found=failure, rule=str(path.parent), do=do)
    return name, library


def _tried(library: Path, digest: str) -> str:
    """Return what went wrong when another process loaded a library; tried once for a torch if the cache keeps that."""
    # Source: kernels/trial.py, without which an exception of a kernel may end the process.
    native = native_kernels.library()
    parts = (digest, torch.__version__, torch.__file__, str(native))
    stamp = f"{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}.tried"
    with suppress(OSError):
        if (cache_folder() / stamp).exists() and not why_unsafe(cache_folder()):
            return ""
    failure = failure_of(library, native)
    if failure is not None:
        return f"another process, which tried it, printed:\n{indented(failure.words.splitlines())}"
    with suppress(OSError):  # it is tried again by the next process
        folder = cache_folder()
        require_writable(folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / stamp).touch(mode=0o600)
    return ""


def _damaged(path: Path, found: str) -> KernelUnavailable:
    problem, do = "a prebuilt file of the kernel is damaged", "install the package again"
    return KernelUnavailable(path.name, problem, found=found, rule=str(path), do=do)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def is_served(level: str) -> bool:
    """Return True if this processor has the instructions of a level; the names are the compiler's -march."""
    needed = LEVELS.get(level)
    if needed is None:  # the base of this platform
        return True
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return needed <= set(next((line for line in lines if line.startswith("flags")), "").split())


_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
LEVELS = {
    "x86-64-v4": _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": _V3,
    "x86-64-v2": _V2,
}
"""Levels of x86-64 as the System V ABI defines them, by the names that Linux gives their instructions."""
