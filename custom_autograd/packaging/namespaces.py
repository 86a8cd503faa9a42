"""Namespace of a package's ops: fixed in a wheel, and unique to each build for the Kernel Hub.

One process may load two versions of a kernel from the Hub, and ops with the same name would collide.
"""

from __future__ import annotations

from pathlib import Path

FILE = "_namespace.txt"
"""File that a build for the Hub writes into the package: the suffix of each namespace."""


def namespace(name: str, file: str) -> str:
    """Return the namespace in which a package declares its ops.

    Args:
        name: the namespace, such as "myops".
        file: the `__file__` of the package, or of a module in its folder.

    Returns:
        The name itself; in a build for the Kernel Hub, the name and the hash of the build, such as "myops_3f2a90c1".

    Example:
        >>> namespace("myops", __file__)
        'myops'
    """
    try:
        suffix = (Path(file).parent / FILE).read_text(encoding="utf-8").strip()
    except OSError:
        return name
    return f"{name}_{suffix}"
