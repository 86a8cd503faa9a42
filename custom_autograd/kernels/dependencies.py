"""Which files and which compiler a library was made from, so that it serves only while none of them has changed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.kernels.compilers import TORCH, Compiler, run


@dataclass(frozen=True)
class Record:
    """Inputs of the last build of a source; kept next to the libraries, as JSON."""

    library: str
    """The name of the library that was made."""

    files: list[str]
    """Every file that the preprocessor read: the source, headers of ours, of others, of torch and of the system."""

    programs: list[list[str]]
    """The identity of the compiler; see `identity`."""

    version: str
    """What the compiler says that it is."""

    def write(self, path: Path) -> Path:
        """Write it to a file, and return the path of that."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path


def read_record(path: Path) -> Record | None:
    """Return what was written there; None if nothing was, or where it is damaged."""
    try:
        found = Record(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    is_whole = isinstance(found.files, list) and all(isinstance(file, str) for file in found.files)
    return found if is_whole else None


def digest_of(files: Iterable[str]) -> str:
    """Return a hash of what files hold.

    Of what torch or the system installed it takes size and time: these are some 450 files, which take 15 ms to read.
    """
    digest = hashlib.sha256()
    for file in files:
        if file.startswith(INSTALLED):
            status = os.stat(file)
            digest.update(repr((file, status.st_size, status.st_mtime_ns)).encode())
        else:
            digest.update(hashlib.sha256(Path(file).read_bytes()).digest())
    return digest.hexdigest()


def identity(compiler: Compiler, source: Path) -> list[list[str]] | None:
    """Return path, size and time of each program that compiles; None if there is no compiler."""
    try:
        names = compiler.programs(source)
    except KernelUnavailable:
        return None
    return [described(os.path.realpath(shutil.which(name) or name)) for name in names]


def described(program: str) -> list[str]:
    """Return a program's path, size and time."""
    try:
        status = os.stat(program)
    except OSError:
        return [program, "is not there"]
    return [program, str(status.st_size), str(status.st_mtime_ns)]


def version_of(compiler: Compiler, source: Path) -> str:
    """Return what the programs that compile say that they are; of one that is missing, the other will say so."""
    return "\n".join(run([name, "--version"]).stdout for name in compiler.programs(source) if shutil.which(name))


def listed_files(text: str, flags: Sequence[str]) -> list[str]:
    """Return the files that a make rule names (`times.o: times.cpp /usr/include/stdio.h`), and those in flags.

    Their order is that of the preprocessor: the same contents in another order are another library.
    """
    _, _, names = text.replace("\\\n", " ").partition(": ")
    words = [re.sub(r"\\([ #])", r"\1", word).replace("$$", "$") for word in re.split(r"(?<!\\)\s+", names) if word]
    return [os.path.join(os.getcwd(), word) for word in (*words, *flags) if os.path.isfile(word)]


INSTALLED = (f"{TORCH}{os.sep}", "/usr/include/", "/usr/lib/", "/usr/lib64/", "/usr/local/cuda")
