"""Is this a torch that the package was tested with?

Differences between the supported versions are probed by feature, in the files of this folder. What cannot be probed is
whether torch's internals still mean what they meant: the tests of each release answer that, up to `NEWEST`.

- `torch.__version__`: compared by its first two numbers; a nightly build counts as the release that it precedes.
"""

from __future__ import annotations

import os
import warnings

import torch

NEWEST = (2, 15)
"""The newest torch release that all tests of this release passed with."""

TRUST = "CUSTOM_AUTOGRAD_TRUST_TORCH"
"""The environment variable which, set to "1", treats a newer torch as a tested one."""


def release_of(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version, such as (2, 15) of "2.15.0+cpu"."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def warn_if_untested(version: str = torch.__version__) -> bool:
    """Return True, and warn, if a torch version is newer than all that were tested and is not trusted."""
    # Calls then always go through the dispatcher, which is what PyTorch documents; nothing else changes.
    if release_of(version) <= NEWEST or os.environ.get(TRUST) == "1":
        return False
    newest = ".".join(map(str, NEWEST))
    warnings.warn(
        f"custom_autograd was tested with torch 2.11 to {newest}, and this is torch {version}: every call goes through "
        f"the dispatcher, which is slower. Update custom_autograd, or set {TRUST}=1 after running its tests.",
        UserWarning,
        stacklevel=2,
    )
    return True
