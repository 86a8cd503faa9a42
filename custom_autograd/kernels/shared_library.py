"""From a C++ or CUDA C++ source to a shared library in the cache: found by its content, else built by one command.

A library that the package of the source brings along goes first: see `prebuilt.py`.

NAME_<hash>.so      hash of all that the library depends on: source, headers, flags, compiler, torch, processor
NAME_<hash>.sha256  the library's contents, by which a damaged file is recognised
NAME_<hash>.d       hash of where the source is and how it is compiled; the inputs of its last build, as JSON

A library is loaded only if the files of the last build still give its name, its contents are those that were built, and
no other user can write it. It appears in one step (`os.replace`), and a lock that dies with its process keeps processes
that start together from building the same thing.

`torch.utils.cpp_extension.load` is not used: it needs ninja on PATH and setuptools, and its lock file outlives a
process that is killed, after which every later process waits for ever. Stable headers need neither.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.core.locks import thread_lock
from custom_autograd.core.messages import first_line, quote
from custom_autograd.kernels import native_kernels, prebuilt
from custom_autograd.kernels.cache_files import DIGEST, cache_folder, install, is_intact, lock, why_unsafe
from custom_autograd.kernels.compilers import (
    HEADERS,
    LONGEST_BUILD,
    TORCH,
    CppCompiler,
    Failure,
    end_of,
    failure_of,
    indented,
    run,
)


def find_or_build(source: Path, flags: Sequence[str], compiler: CppCompiler | None = None) -> tuple[str, Path]:
    """Return namespace and path of the library of a source: that which comes with it, of the cache, or a new one."""
    source, compiler = source.absolute(), compiler or CppCompiler()
    refusal = None
    try:
        found = prebuilt.find(source, flags, compiler.targets())
        if found is not None:
            return found
    except KernelUnavailable as error:
        refusal = error
    try:
        return _find_or_build(source, tuple(flags), compiler)
    except KernelUnavailable as error:
        raise refusal or _foreign(source, compiler, error) or error from error


def _find_or_build(source: Path, flags: tuple[str, ...], compiler: CppCompiler) -> tuple[str, Path]:
    try:
        build = Build(source, flags, compiler, cache_folder())
        name = build.recorded()
        if name is None:
            source.read_bytes()  # a source that cannot be read, rather than a folder that cannot be written
            build.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock_file = build.folder / f"{build.stem()}.lock"
            with thread_lock(str(lock_file)), lock(lock_file):
                name = build.recorded() or build.made()
    except OSError as error:
        advice = ANOTHER_CACHE
        if str(error.filename) in (str(source), str(source.parent)):
            advice = _to_read(source)
        elif shutil.which(str(error.filename)):  # a program that does not start
            advice = f"{FLAGS_OR} {compiler.standard}"
        raise KernelUnavailable(source.name, "the kernel cannot be built", found=str(error), do=advice) from error
    return name, build.folder / f"{name}.so"


def _to_read(source: Path) -> str:
    """Return the advice for a source that cannot be read."""
    archive = next((folder for folder in source.parents if folder.is_file()), None)
    if archive is not None:
        return f"a compiler reads no source in {archive.name}: install the package in a folder, or unpack the file"
    return NO_SOURCE


def _foreign(source: Path, compiler: CppCompiler, error: KernelUnavailable) -> KernelUnavailable | None:
    """Return the error of a package that brings libraries of a source, but for other platforms; None if it does not."""
    targets = prebuilt.targets_beside(source)
    if not targets or not {*targets}.isdisjoint(compiler.targets()):
        return None
    return KernelUnavailable(
        source.name,
        "the package brings no library of the kernel for this platform, and it cannot be built",
        expected=f"a library for {quote(compiler.targets()[:1])}",
        found=f"libraries for {quote(targets)}; {first_line(error).partition(': ')[2]}",
        do="install the package's wheel for this platform, or a C++ compiler and the source distribution",
    )


@dataclass(frozen=True)
class BuildRecord:
    """Inputs of the last build of a source.

    Attributes:
        library: the name of the library that was made.
        files: every file that the preprocessor read: the source, and headers, those of torch and the system too.
        programs: path, size and time of each program that compiles.
        version: what these programs say that they are.
    """

    library: str
    files: list[str]
    programs: list[list[str]]
    version: str


@dataclass(frozen=True)
class Build:
    """One source, and how it becomes a library."""

    source: Path
    further: tuple[str, ...]
    compiler: CppCompiler
    folder: Path

    def stem(self) -> str:
        """Return the source's name, and a hash of where it is and how it is compiled."""
        self.source.read_bytes()  # the reason why it cannot be read, rather than the compiler's
        relative_to = os.getcwd() if self.further else ""  # flags may hold relative paths
        # A new header here may be included in place of one that a flag finds elsewhere.
        neighbours = sorted(name for name in os.listdir(self.source.parent) if name.endswith(HEADER_SUFFIXES))
        return hashed(self.source, str(self.source), relative_to, *neighbours, *self._how())

    def recorded(self) -> str | None:
        """Return the name of the library that the last build made, if all that it used is as it was."""
        if self.folder.exists() and (reason := why_unsafe(self.folder)):
            reason = f"libraries of this folder may be another user's: {reason}"
            raise PermissionError(errno.EPERM, reason, str(self.folder))
        try:
            record = BuildRecord(**json.loads(self._record().read_text(encoding="utf-8")))
            name = self._name([str(file) for file in record.files], record.programs, record.version)
        except (OSError, ValueError, TypeError):  # a header has gone, or there is no record, or a damaged one
            return None
        if name != record.library or self._programs() not in (None, record.programs):
            return None
        return name if is_intact(self.folder / f"{name}.so") else None

    def made(self) -> str:
        """Build the library unless it is there and intact, record what it used, and return its name."""
        self._remove_leftovers()
        with tempfile.TemporaryDirectory(prefix=LEFTOVER, dir=self.folder) as empty:
            for _ in range(ATTEMPTS):
                command, programs, version = self._command(), self._programs() or [], self._version()
                files = self._files(command, Path(empty, "files.d"))
                name = self._name(files, programs, version)
                unfinished, path = Path(empty, f"{name}.so"), self.folder / f"{name}.so"
                is_built = is_intact(path)
                failure = None if is_built else self._compile(command, name, unfinished)
                if self._name(files, programs, version) != name:
                    continue
                if failure is not None:
                    raise failure
                if not is_built:
                    contents = unfinished.read_bytes()
                    install(hashlib.sha256(contents).hexdigest().encode(), path.with_suffix(DIGEST), empty)
                    install(contents, path, empty)
                record = BuildRecord(name, files, programs, version)
                install(json.dumps(asdict(record)).encode(), self._record(), empty)
                return name
        raise OSError(f"{self.source} or a header of it changed {ATTEMPTS} times while it was compiled")

    def _record(self) -> Path:
        return self.folder / f"{self.stem()}.d"

    def _programs(self) -> list[list[str]] | None:
        """Return path, size and time of each program that compiles; None if there is no compiler."""
        try:
            names = self.compiler.programs(self.source)
        except KernelUnavailable:
            return None
        return [described(os.path.realpath(shutil.which(name) or name)) for name in names]

    def _version(self) -> str:
        """Return what the programs that compile say that they are; of one that is missing, the other will say so."""
        names = self.compiler.programs(self.source)
        return "\n".join(run([name, "--version"]).stdout for name in names if shutil.which(name))

    def _how(self) -> tuple[str, ...]:
        return repr(self.further), self.compiler.fingerprint(), torch.__version__, str(TORCH), processor()

    def _name(self, files: Sequence[str], programs: Sequence[Sequence[str]], version: str) -> str:
        # A wrapper of a compiler, with flags in it, says the version of that compiler whatever it does.
        parts = digest_of(self.compiler.dependencies(files)), repr(programs), version
        return hashed(self.source, *parts, *self._how())

    def _command(self) -> list[str]:
        command = self.compiler.find(self.source)
        # Linkers take from a library what the files before it need: the source comes before the flags, such as -lm.
        words = [*command, *self.compiler.flags(command, self.source), str(self.source), *self.further]
        return [*words, f"-I{TORCH / 'include'}", f"-I{HEADERS}"]

    def _files(self, command: Sequence[str], path: Path) -> list[str]:
        self._run([*command, "-DKERNEL_NAMESPACE=any", "-M"], "-MF", path)
        return listed_files(os.fsdecode(path.read_bytes()), self.further)

    def _compile(self, command: Sequence[str], name: str, path: Path) -> KernelUnavailable | None:
        """Compile the library, linked in the first way that passes the trial; return the reason if there is none."""
        libraries = [f"-L{TORCH / 'lib'}", *self.compiler.libraries()]
        tried = []
        for words, runtime in self.compiler.runtimes():
            self._run([*command, f"-DKERNEL_NAMESPACE={name}", *runtime, *libraries], "-o", path)
            failure = failure_of(path, native_kernels.library())
            if failure is None:
                return None
            if failure.step == "loading":
                return self._refused(failure)
            tried.append(f"linked {words}:\n{indented(failure.words.splitlines())}")
        return self._silent(tried)

    def _run(self, command: Sequence[str], option: str, path: Path) -> None:
        """Run the compiler, which writes the file that an option names."""
        path.unlink(missing_ok=True)
        result = run([*command, option, str(path)])
        if result.returncode or not path.exists():  # the status of a process is 0 where the program ignores SIGCHLD
            words = shlex.join(self.compiler.find(self.source))
            end = f"ended with status {result.returncode}" if result.returncode >= 0 else end_of(result.returncode)
            end += "" if result.returncode else f", and did not write the file that {option} names"
            printed = f":\n{excerpt(result.stdout)}" if result.stdout.strip() else ", and printed nothing"
            problem, advice = "the compiler refuses the kernel", f"correct {self.source}, or {self.compiler.standard}"
            if "-M" in command and self.source.name not in result.stdout:  # it did not come to read the source
                problem, advice = NOT_WORKING, f"{FLAGS_OR} {self.compiler.standard}"
            if EXTENSION in result.stdout:
                advice = f"include <custom_autograd/kernel.h> in place of <{EXTENSION}>: kernels use torch's stable ABI"
            for sign, (cause, remedy) in FAULTS_OF_THE_MACHINE.items():
                if sign in result.stdout:
                    problem, advice = f"the compiler does not finish: {cause}", remedy
            raise KernelUnavailable(self.source.name, problem, found=f"{words} {end}{printed}", do=advice)

    def _refused(self, failure: Failure) -> KernelUnavailable:
        problem = "loading the library of the kernel fails, which may end a process"
        advice = f"correct {self.source}: its schemas, what it defines twice, or its static variables"
        found = f"another process, which tried it, printed:\n{indented(failure.words.splitlines())}"
        return KernelUnavailable(self.source.name, problem, found=found, do=advice)

    def _silent(self, tried: Sequence[str]) -> KernelUnavailable:
        compiler = self._version().partition("\n")[0] or self.compiler.find(self.source)[0]
        problem = "an exception that the kernel raises does not arrive in Python, and may end a process"
        expected = "a library whose exceptions torch can catch"
        found = "\n             ".join([f"{compiler}, torch {torch.__version__}", *tried])
        return KernelUnavailable(self.source.name, problem, expected=expected, found=found, do=ANOTHER_RUNTIME)

    def _remove_leftovers(self) -> None:
        """Remove what processes left that were killed while they compiled."""
        for folder in self.folder.glob(f"{LEFTOVER}*"):
            if time.time() - folder.stat().st_mtime > 2 * LONGEST_BUILD:
                shutil.rmtree(folder, ignore_errors=True)


def hashed(source: Path, *parts: str) -> str:
    """Return a source's name and a hash of what else there is to tell."""
    digest = hashlib.sha256(repr(parts).encode())
    return f"{re.sub('[^0-9A-Za-z]+', '_', source.stem)}_{digest.hexdigest()[:20]}"


def digest_of(files: Iterable[str]) -> str:
    """Return a hash of what files hold."""
    # Of what torch or the system installed it takes size and time: these are some 450 files, which take 15 ms to read.
    digest = hashlib.sha256()
    for file in files:
        if file.startswith(INSTALLED):
            status = os.stat(file)
            digest.update(repr((file, status.st_size, status.st_mtime_ns)).encode())
        else:
            digest.update(hashlib.sha256(Path(file).read_bytes()).digest())
    return digest.hexdigest()


def described(program: str) -> list[str]:
    """Return a program's path, size and time."""
    try:
        status = os.stat(program)
    except OSError:
        return [program, "is not there"]
    return [program, str(status.st_size), str(status.st_mtime_ns)]


def listed_files(text: str, flags: Sequence[str]) -> list[str]:
    """Return the files that a make rule names (`times.o: times.cpp /usr/include/stdio.h`), and those named in flags."""
    # Their order is that of the preprocessor: the same contents in another order are another library.
    _, _, names = text.replace("\\\n", " ").partition(": ")
    parts = re.split(r"(?<!\\) +", names.removesuffix("\n"))  # further lines are those of a name
    words = [re.sub(r"\\([ \t#])", r"\1", part).replace("$$", "$") for part in parts if part]
    named = (part for flag in flags for part in (flag, *re.split("[@=,]", flag)[1:]))  # @flags.txt, -Wl,-T,script.ld
    return [os.path.join(os.getcwd(), word) for word in (*words, *named) if os.path.isfile(word)]


def processor() -> str:
    """Return what -march=native depends on; a home folder may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    features = (line for line in lines if line.startswith(("flags", "Features")))
    return platform.machine() + next(features, "")


def excerpt(output: str) -> str:
    """Return the first lines of a compiler's output from the first error on, which may be the linker's."""
    lines = output.splitlines()
    first = next((number for number, line in enumerate(lines) if re.search(r"error|\bld(\.\w+)?: ", line)), 0)
    return indented(lines[first:])


INSTALLED = (f"{TORCH}{os.sep}", "/usr/include/", "/usr/lib/", "/usr/lib64/", "/usr/local/cuda")
LEFTOVER = "build-"
ATTEMPTS = 3
NO_SOURCE = "check the path; if it is part of an installed package, add the source to its package data"
ANOTHER_RUNTIME = "set CXX to a compiler that links libstdc++ as a shared library, or remove flags that change that"
EXTENSION = "torch/extension.h"
NOT_WORKING = "the compiler does not work"
FLAGS_OR = "correct the flags, or"
ANOTHER_CACHE = "point CUSTOM_AUTOGRAD_CACHE at a folder that you can write, and no other user"
SPACE = "free some space, or point CUSTOM_AUTOGRAD_CACHE (the library) and TMPDIR (the compiler's files) elsewhere"
MEMORY = "free some memory, or build the kernel where there is more: kernel.build()"
FAULTS_OF_THE_MACHINE = {
    "No space left on device": ("the disk is full", SPACE),
    "Disk quota exceeded": ("the quota of the disk is used up", SPACE),
    "File size limit exceeded": ("the shell limits the size of files", "raise the limit, which `ulimit -f` shows"),
    "Killed signal": ("it was killed, as a process is that needs more memory than there is", MEMORY),
}
HEADER_SUFFIXES = (".h", ".hh", ".hpp", ".hxx", ".h++", ".cuh", ".inc", ".inl", ".ipp", ".tpp")
