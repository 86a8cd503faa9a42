"""Files of the kernel cache: put in place whole and in one step, and recognised if they are no longer whole, or ours.

A library that was cut short ends the process that loads it (SIGBUS), and one with flipped bytes is loaded without an
error. Disks that were full, file systems after a crash and copied home folders have such files. What another user can
write runs with this user's rights once it is loaded.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

DIGEST = ".sha256"
OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def install(unfinished: Path, path: Path) -> None:
    """Move a finished file to its path in one step, once its contents have reached the disk."""
    unfinished.chmod(stat.S_IMODE(unfinished.stat().st_mode) & ~OF_OTHERS)
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
    """Return True if a library is there, holds what was built, and no other user can write it; 1 ms for 1 MB."""
    try:
        is_same = library.with_suffix(DIGEST).read_bytes() == digest_of_contents(library).encode()
        return is_same and not why_unsafe(library)
    except OSError:
        return False


def require_safe(folder: Path) -> None:
    """Check that no other user can put a library into a folder.

    Raises:
        PermissionError: one can.
    """
    reason = why_unsafe(folder)
    if reason:
        raise PermissionError(errno.EPERM, f"libraries of this folder may be another user's: {reason}", str(folder))


def why_unsafe(path: Path) -> str:
    """Return why another user, other than root, can change a file or a folder; empty if none can.

    Raises:
        OSError: it is not there.
    """
    status = path.stat()
    if not hasattr(os, "getuid"):  # Windows, where nothing is built
        return ""
    if status.st_uid not in (os.getuid(), 0):
        return f"it belongs to the user with the id {status.st_uid}, and this process runs as {os.getuid()}"
    writers = stat.S_IMODE(status.st_mode) & OF_OTHERS
    return f"its mode {stat.S_IMODE(status.st_mode):04o} lets others write to it; chmod go-w" if writers else ""


def digest_of_contents(file: Path) -> str:
    """Return the hash of what a file holds."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
