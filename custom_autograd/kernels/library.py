"""From a C++ or CUDA C++ source to a shared library in the cache: found by its content, else built by one command.

The name of a library is a hash of all that it depends on: source, headers, flags, compiler, torch, processor. So a
library in the cache is never stale. It appears there in one step (`os.replace`), so it is never half written, and a
lock that dies with its process keeps processes that start together from building the same thing.

`torch.utils.cpp_extension.load` is not used: it needs ninja on PATH and setuptools, and its lock file outlives a
process that is killed, after which every later process waits for ever. Stable headers need neither.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.core.messages import format_message
from custom_autograd.kernels.compilers import TORCH, Compiler, CppCompiler, run


def find_or_build(source: Path, flags: Sequence[str], compiler: Compiler | None = None) -> tuple[str, Path]:
    """The library of a source, from the cache or newly built.

    Args:
        source: the C++ or CUDA C++ file.
        flags: further flags for the compiler.
        compiler: that of the source's language; without one, that of C++.

    Returns:
        The namespace in which the source registers its functions, and the library's path.

    Raises:
        KernelUnavailable: the source cannot be read or built, or the cache cannot be written.
    """
    compiler = compiler or CPP
    try:
        name = library_name(source, flags, compiler)
        folder = cache_folder()
        path = folder / f"{name}.so"
        if not path.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with lock(folder / f"{name}.lock"):
                if not path.exists():
                    build(source, name, path, flags, compiler)
    except OSError as error:
        advice = "check the path, or point CUSTOM_AUTOGRAD_CACHE at a folder that can be written"
        message = format_message(source.name, "the kernel cannot be built", found=str(error), do=advice)
        raise KernelUnavailable(message) from error
    return name, path


def cache_folder() -> Path:
    """Where libraries are kept: CUSTOM_AUTOGRAD_CACHE, else the user's cache folder."""
    if chosen := os.environ.get("CUSTOM_AUTOGRAD_CACHE"):
        return Path(chosen).expanduser() / "kernels"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "custom_autograd" / "kernels"


def library_name(source: Path, flags: Sequence[str], compiler: Compiler | None = None) -> str:
    """The source's name and a hash of all that its library depends on."""
    digest = hashlib.sha256()
    beside = (file for pattern in ("*.h", "*.cuh") for file in source.parent.glob(pattern))
    for file in (source, *sorted(HEADERS.rglob("*.h")), *sorted(beside)):
        digest.update(file.read_bytes())
    parts = tuple(flags), (compiler or CPP).fingerprint(), torch.__version__, processor()
    digest.update(repr(parts).encode())
    return f"{re.sub('[^0-9A-Za-z]+', '_', source.stem)}_{digest.hexdigest()[:20]}"


def processor() -> str:
    """What -march=native depends on; a home folder may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    features = (line for line in lines if line.startswith(("flags", "Features")))
    return platform.machine() + next(features, "")


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Holds a lock that the operating system drops when the process ends, however it ends.

    A file system without locks costs a second build at worst: libraries are put in place in one step.
    """
    import fcntl  # not on Windows, where building is refused before

    # Record locks, not flock: a child forked in another thread does not inherit them.
    with path.open("w", encoding="utf-8") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX)
        except OSError:
            yield
            return
        yield


def build(source: Path, name: str, path: Path, flags: Sequence[str], compiler: Compiler) -> None:
    """Compiles a source into the cache."""
    command = compiler.find(source)
    with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as folder:
        unfinished = Path(folder, path.name)
        words = [*command, *compiler.flags(command, source), *flags, f"-DKERNEL_NAMESPACE={name}"]
        words += [f"-I{TORCH / 'include'}", f"-I{HEADERS}", str(source), "-o", str(unfinished)]
        result = run([*words, f"-L{TORCH / 'lib'}", *compiler.libraries()])
        if result.returncode:
            problem = "the compiler refuses the kernel"
            found = f"{shlex.join(command)} ended with status {result.returncode}:\n{excerpt(result.stdout)}"
            advice = f"correct {source}, or {compiler.standard}"
            raise KernelUnavailable(format_message(source.name, problem, found=found, do=advice))
        os.replace(unfinished, path)


def excerpt(output: str) -> str:
    """The first lines of a compiler's output from the first error on."""
    lines = output.splitlines()
    first = next((number for number, line in enumerate(lines) if "error" in line), 0)
    return "\n".join(f"             {line[:160]}" for line in lines[first : first + 12])


HEADERS = Path(__file__).parent / "include"
CPP: Compiler = CppCompiler()
