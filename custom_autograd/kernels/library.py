"""From a C++ or CUDA C++ source to a shared library in the cache: found by its content, else built by one command.

NAME_<hash>.so    hash of all that the library depends on: source, headers, flags, compiler, torch, processor
NAME_<hash>.d     hash of where the source is and how it is compiled; lists the files that its last build read

A library is loaded only if the listed files still give its name: it is never stale. It appears in one step
(`os.replace`), so it is never half written, and a lock that dies with its process keeps processes that start together
from building the same thing.

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
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.core.messages import format_message
from custom_autograd.kernels.compilers import HEADERS, LONGEST_BUILD, TORCH, Compiler, CppCompiler, run
from custom_autograd.kernels.dependencies import Record, digest_of, identity, listed_files, read_record, version_of
from custom_autograd.kernels.lazy import thread_lock
from custom_autograd.kernels.trial import last_words


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
    try:
        build = Build(source.absolute(), tuple(flags), compiler or CPP, cache_folder())
        name = build.recorded()
        if name is None:
            build.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            place = build.folder / f"{build.place()}.lock"
            with thread_lock(str(place)), lock(place):
                name = build.recorded() or build.made()
    except OSError as error:
        advice = "check the path, or point CUSTOM_AUTOGRAD_CACHE at a folder that can be written"
        message = format_message(source.name, "the kernel cannot be built", found=str(error), do=advice)
        raise KernelUnavailable(message) from error
    return name, build.folder / f"{name}.so"


@dataclass(frozen=True)
class Build:
    """One source, and how it becomes a library."""

    source: Path
    further: tuple[str, ...]
    compiler: Compiler
    folder: Path

    def place(self) -> str:
        """The source's name, and a hash of where it is and how it is compiled."""
        self.source.read_bytes()  # the reason why it cannot be read, rather than the compiler's
        relative_to = os.getcwd() if self.further else ""  # flags may hold relative paths
        # A new header here may be included in place of one that a flag finds elsewhere.
        beside = sorted(name for name in os.listdir(self.source.parent) if name.endswith(HEADER_SUFFIXES))
        return hashed(self.source, str(self.source), relative_to, *beside, *self._how())

    def recorded(self) -> str | None:
        """The name of the library that the last build made, if all that it used is as it was."""
        record = read_record(self.folder / f"{self.place()}.d")
        if record is None or identity(self.compiler, self.source) not in (None, record.programs):
            return None
        try:
            name = self._name(record.files, record.version)
        except OSError:  # a header has gone
            return None
        return name if name == record.library and (self.folder / f"{name}.so").exists() else None

    def made(self) -> str:
        """The name of a library that was built, unless it is there; and a record of what it used."""
        self._remove_leftovers()
        with tempfile.TemporaryDirectory(prefix=LEFTOVER, dir=self.folder) as empty:
            for _ in range(ATTEMPTS):
                command = self._command()
                programs = identity(self.compiler, self.source) or []
                version = version_of(self.compiler, self.source)
                files = self._files(command, Path(empty, "files.d"))
                name = self._name(files, version)
                unfinished, path = Path(empty, f"{name}.so"), self.folder / f"{name}.so"
                if not path.exists():
                    self._compile(command, name, unfinished)
                if self._name(files, version) != name:
                    continue
                if not path.exists():
                    self._try(unfinished)
                    os.replace(unfinished, path)
                Record(name, files, programs, version).write(self.folder / f"{self.place()}.d")
                return name
        raise OSError(f"{self.source} or a header of it changed {ATTEMPTS} times while it was compiled")

    def _how(self) -> tuple[str, ...]:
        return repr(self.further), self.compiler.fingerprint(), torch.__version__, str(TORCH), processor()

    def _name(self, files: Sequence[str], version: str) -> str:
        return hashed(self.source, digest_of(files), version, *self._how())

    def _command(self) -> list[str]:
        command = self.compiler.find(self.source)
        words = [*command, *self.compiler.flags(command, self.source), *self.further]
        return [*words, f"-I{TORCH / 'include'}", f"-I{HEADERS}", str(self.source)]

    def _files(self, command: Sequence[str], path: Path) -> list[str]:
        self._run([*command, "-DKERNEL_NAMESPACE=any", "-M", "-MF", str(path)])
        return listed_files(path.read_text(encoding="utf-8", errors="surrogateescape"), self.further)

    def _compile(self, command: Sequence[str], name: str, path: Path) -> None:
        namespace = f"-DKERNEL_NAMESPACE={name}"
        libraries = [f"-L{TORCH / 'lib'}", *self.compiler.libraries()]
        self._run([*command, namespace, "-o", str(path), *libraries])

    def _run(self, command: Sequence[str]) -> None:
        result = run(command)
        if result.returncode:
            words = shlex.join(self.compiler.find(self.source))
            found = f"{words} ended with status {result.returncode}:\n{excerpt(result.stdout)}"
            advice = f"correct {self.source}, or {self.compiler.standard}"
            problem = "the compiler refuses the kernel"
            raise KernelUnavailable(format_message(self.source.name, problem, found=found, do=advice))

    def _try(self, path: Path) -> None:
        words = last_words(path)
        if words is not None:
            problem = "loading the library of the kernel fails, which may end a process"
            advice = f"correct {self.source}: its schemas, what it defines twice, or its static variables"
            found = f"another process, which tried it, said:\n{indented(words.splitlines())}"
            raise KernelUnavailable(format_message(self.source.name, problem, found=found, do=advice))

    def _remove_leftovers(self) -> None:
        """What processes left that were killed while they compiled."""
        for folder in self.folder.glob(f"{LEFTOVER}*"):
            if time.time() - folder.stat().st_mtime > 2 * LONGEST_BUILD:
                shutil.rmtree(folder, ignore_errors=True)


def hashed(source: Path, *parts: str) -> str:
    """A source's name and a hash of what else there is to tell."""
    digest = hashlib.sha256(repr(parts).encode())
    return f"{re.sub('[^0-9A-Za-z]+', '_', source.stem)}_{digest.hexdigest()[:20]}"


def cache_folder() -> Path:
    """Where libraries are kept: CUSTOM_AUTOGRAD_CACHE, else the user's cache folder."""
    if chosen := os.environ.get("CUSTOM_AUTOGRAD_CACHE"):
        return Path(chosen).expanduser() / "kernels"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "custom_autograd" / "kernels"


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


def excerpt(output: str) -> str:
    """The first lines of a compiler's output from the first error on."""
    lines = output.splitlines()
    first = next((number for number, line in enumerate(lines) if "error" in line), 0)
    return indented(lines[first:])


def indented(lines: Sequence[str]) -> str:
    """The first lines, as they stand in a message."""
    return "\n".join(f"             {line[:160]}" for line in lines[:12])


CPP: Compiler = CppCompiler()
LEFTOVER = "build-"
ATTEMPTS = 3
HEADER_SUFFIXES = (".h", ".hh", ".hpp", ".hxx", ".h++", ".cuh", ".inc", ".inl", ".ipp", ".tpp")
