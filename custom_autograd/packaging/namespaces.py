"""The namespace of a package's ops: fixed in a wheel, and of its own in each build for the Kernel Hub.

Two versions of a kernel of the Hub may be loaded in one process, where ops of one name would collide.
"""

from __future__ import annotations

from pathlib import Path

FILE = "_namespace.txt"
"""What a build for the Hub writes into the package: what is added to each namespace."""


def namespace(name: str, file: str) -> str:
    """Return the namespace under which a package declares its ops.

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
