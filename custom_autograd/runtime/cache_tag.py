"""The share of each op in the key of torch's compile caches: counted from when its fake first runs.

No op is compiled before its fake has run, and a program declares many ops that it never compiles.
"""

from __future__ import annotations

from custom_autograd.registration.registry import Entry
from custom_autograd.runtime.fingerprint import fingerprint
from custom_autograd.torch_private.compiler import CacheTag

COUNTED = "compile cache"
_TAG = CacheTag()


def count_rules(entry: Entry) -> None:
    """Counts the op's rules into the tag, in place of what was counted before."""
    _TAG.update(str(entry.home), fingerprint(entry))
    entry.attached.add(COUNTED)
