"""From a C++ source file to a shared library in the cache: found by its content, else built by one compiler call.

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
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.core.messages import format_message


def find_or_build(source: Path, flags: Sequence[str]) -> tuple[str, Path]:
    """The library of a source, from the cache or newly built.

    Args:
        source: the C++ file.
        flags: further flags for the compiler.

    Returns:
        The namespace in which the source registers its functions, and the library's path.

    Raises:
        KernelUnavailable: the source cannot be read or built, or the cache cannot be written.
    """
    try:
        name = library_name(source, flags)
        folder = cache_folder()
        path = folder / f"{name}.so"
        if not path.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with lock(folder / f"{name}.lock"):
                if not path.exists():
                    build(source, name, path, flags)
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


def library_name(source: Path, flags: Sequence[str]) -> str:
    """The source's name and a hash of all that its library depends on."""
    digest = hashlib.sha256()
    for file in (source, *sorted(HEADERS.rglob("*.h")), *sorted(source.parent.glob("*.h"))):
        digest.update(file.read_bytes())
    digest.update(repr((tuple(flags), FLAGS, os.environ.get("CXX"), torch.__version__, processor())).encode())
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


def build(source: Path, name: str, path: Path, flags: Sequence[str]) -> None:
    """Compiles a source into the cache."""
    compiler = find_compiler(source)
    with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as folder:
        unfinished = Path(folder, path.name)
        command = [*compiler, *FLAGS, *native_flags(compiler), *flags, f"-DKERNEL_NAMESPACE={name}"]
        command += [f"-I{TORCH / 'include'}", f"-I{HEADERS}", str(source), "-o", str(unfinished)]
        command += [f"-L{TORCH / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]
        result = run(command)
        if result.returncode:
            problem = "the compiler refuses the kernel"
            found = f"{shlex.join(compiler)} ended with status {result.returncode}:\n{excerpt(result.stdout)}"
            advice = f"correct {source}, or set CXX to a compiler that knows C++20"
            raise KernelUnavailable(format_message(source.name, problem, found=found, do=advice))
        os.replace(unfinished, path)


def find_compiler(source: Path) -> list[str]:
    """The command that compiles C++, as words."""
    wanted = os.environ.get("CXX") or "c++"
    words = shlex.split(wanted)
    if os.name == "posix" and words and shutil.which(words[0]):
        return words
    raise KernelUnavailable(
        format_message(
            source.name,
            "no C++ compiler for the kernel",
            expected="g++ or clang++, on Linux or macOS",
            found=f"'{wanted}' ({'from CXX' if os.environ.get('CXX') else 'CXX is not set'}), which is not on PATH",
            do="install g++ or clang++, or set CXX",
        )
    )


def native_flags(compiler: Sequence[str]) -> list[str]:
    """The flag that lets the compiler use all of this processor, where it knows one."""
    for flag in ("-march=native", "-mcpu=native"):
        if run([*compiler, flag, "-E", "-x", "c++", os.devnull]).returncode == 0:
            return [flag]
    return []


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command with stdout and stderr as one text; OSError where it does not start or does not end."""
    try:
        return subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LONGEST_BUILD,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{command[0]} did not end within {LONGEST_BUILD} s") from error


def excerpt(output: str) -> str:
    """The first lines of a compiler's output from the first error on."""
    lines = output.splitlines()
    first = next((number for number, line in enumerate(lines) if "error" in line), 0)
    return "\n".join(f"             {line[:160]}" for line in lines[first : first + 12])


TORCH = Path(torch.__file__).parent
HEADERS = Path(__file__).parent / "include"
FLAGS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-fopenmp-simd", "-fvisibility=hidden")
LONGEST_BUILD = 600  # seconds
