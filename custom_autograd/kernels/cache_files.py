"""The files of the cache: where they are, put in place whole, and recognised if they are damaged or another user's."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Files of the cache are put in place whole and in one step, and recognised if they are no longer whole, or ours. A
# library that was cut short ends the process that loads it (SIGBUS), and one with flipped bytes is loaded without an
# error. Disks that were full, file systems after a crash and copied home folders have such files. What another user can
# write runs with this user's rights once it is loaded.


def install(contents: bytes, path: Path, folder: str) -> None:
    """Put a file in place in one step, once its contents have reached the disk."""
    unfinished = Path(folder, "unfinished")
    with unfinished.open("wb") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())
    unfinished.chmod(stat.S_IMODE(unfinished.stat().st_mode) & ~OF_OTHERS)
    os.replace(unfinished, path)


def is_intact(library: Path) -> bool:
    """Return True if a library is there, holds what was built, and no other user can write it; 1 ms for 1 MB."""
    try:
        digest = hashlib.sha256(library.read_bytes()).hexdigest()
        return library.with_suffix(DIGEST).read_bytes() == digest.encode() and not why_unsafe(library)
    except OSError:
        return False


def why_unsafe(path: Path) -> str:
    """Return why another user, other than root, can change a file or a folder; empty if none can."""
    status = path.stat()
    if not hasattr(os, "getuid"):  # Windows, where nothing is built
        return ""
    if status.st_uid not in (os.getuid(), 0):
        return f"it belongs to the user with the id {status.st_uid}, and this process runs as {os.getuid()}"
    writers = stat.S_IMODE(status.st_mode) & OF_OTHERS
    return f"its mode {stat.S_IMODE(status.st_mode):04o} lets others write to it; chmod go-w" if writers else ""


def cache_folder() -> Path:
    """Return the folder of the libraries: that of CUSTOM_AUTOGRAD_CACHE, else one in the user's cache folder."""
    chosen, base = os.environ.get("CUSTOM_AUTOGRAD_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if chosen:
        return expanded(chosen, f"CUSTOM_AUTOGRAD_CACHE={chosen}") / "kernels"
    source = f"XDG_CACHE_HOME={base}" if base else "neither CUSTOM_AUTOGRAD_CACHE nor HOME is set"
    return expanded(base or "~/.cache", source) / "custom_autograd" / "kernels"


def require_writable(folder: Path) -> None:
    """Check that a folder can be written to, or made."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    code = errno.EACCES if existing.is_dir() else errno.ENOTDIR
    if code == errno.ENOTDIR or not os.access(existing, os.W_OK | os.X_OK):
        raise OSError(code, os.strerror(code), str(existing))


def expanded(folder: str, source: str) -> Path:
    """Return a folder with the home folder in place of ~ or ~user."""
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:  # pathlib's, without a word on who has no home folder
        user = Path(folder).parts[0][1:] or f"with the id {os.getuid()}"
        raise FileNotFoundError(f"{source}, and the user {user} has no home folder") from error


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock that the operating system drops when the process ends, however it ends."""
    # A file system without locks costs a second build at worst: libraries are put in place in one step.
    import fcntl  # not on Windows, where building is refused before

    # Record locks, not flock: a child forked in another thread does not inherit them.
    with path.open("w", encoding="utf-8") as file:
        with suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_EX)
        yield


DIGEST = ".sha256"
OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH
