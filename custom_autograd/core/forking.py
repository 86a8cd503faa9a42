"""Before a fork, wait for what other threads import of this package.

The child has the lock of a module that is being imported, and not the thread that would release it: it would wait for
ever where it needs the module. Much of the package is imported by the first call that needs it, in any thread.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Collection

PACKAGE = __name__.partition(".")[0]
LOCKS: Collection[str] = getattr(importlib.import_module("importlib._bootstrap"), "_module_locks", ())
"""The modules that are being imported, by name: Python's own table of their locks, if this Python has one."""


def wait_for_imports() -> None:
    """Wait until no other thread is in the midst of importing a module of this package."""
    waited: set[str] = set()
    while found := _being_imported() - waited:  # what this thread imports itself stays
        for name in found:
            with contextlib.suppress(Exception):  # whoever imports it hears of that
                importlib.import_module(name)
        waited |= found


def _being_imported() -> set[str]:
    return {name for name in list(LOCKS) if name == PACKAGE or name.startswith(f"{PACKAGE}.")}
