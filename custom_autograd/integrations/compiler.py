"""Compile caches: a changed rule is never served from a cache that was filled before the change.

The on-disk caches of Inductor and AOTAutograd know the graph, not the source of the Python rules it was traced
through (pytorch#144344). So a fingerprint of all rules of all ops becomes part of the caches' key.
"""

from __future__ import annotations

from custom_autograd.registration.registry import Entry
from custom_autograd.runtime.cache_tag import COUNTED, count_rules
from custom_autograd.runtime.fingerprint import fingerprint


class CompileCache:
    """Keeps torch's cache tag in step with what is registered."""

    name = "compile cache"

    def attach(self, entry: Entry) -> None:
        """Counts the op's rules into the tag anew, if something may have been compiled with them."""
        if COUNTED in entry.attached:
            count_rules(entry)

    def describe(self, entry: Entry) -> str:
        """How the op is told apart from its earlier versions."""
        return f"derived from the source of its rules ({fingerprint(entry):016x})"
