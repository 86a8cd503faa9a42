"""Compile caches: a changed rule is never served from a cache that was filled before the change.

The on-disk caches of Inductor and AOTAutograd know the graph, not the source of the Python rules it was traced
through (pytorch#144344). So a fingerprint of the rules of each op becomes part of the caches' key. It is counted from
when the fake of the op first runs: no op is compiled before, and a process declares many ops that it never compiles.
"""

from __future__ import annotations

from custom_autograd.registration.capability import Capability
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private.compiler import CacheTag

_TAG = CacheTag()


class CompileCache(Capability):
    """Keeps torch's cache tag in step with what is registered."""

    name = "compile cache"

    def attach(self, record: OpRecord) -> None:
        """Count the rules of the op again, if something may have been compiled with them."""
        if record.road.is_traced:
            self.before_trace(record)

    def before_trace(self, record: OpRecord) -> None:
        """Count the rules of the op into the tag, in place of what was counted before."""
        _TAG.update(str(record.definition.name), _fingerprint(record))

    def describe(self, record: OpRecord) -> str:
        """Return how the op is distinguished from its earlier versions."""
        return f"derived from the source of its rules ({_fingerprint(record):016x})"


def _fingerprint(record: OpRecord) -> int:
    from custom_autograd.capabilities.compile_cache.fingerprint import fingerprint  # loaded for ops that are compiled

    return fingerprint(record)
