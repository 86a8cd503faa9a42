"""Builds the second device, and makes the environment of a process that has it."""

import os
from collections.abc import Sequence
from pathlib import Path

from custom_autograd.kernels.compilers import ExtensionCompiler
from custom_autograd.kernels.shared_library import find_or_build

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "source" / "second_device.cpp"
LIBRARY = "SECOND_DEVICE_LIBRARY"
"""The variable of the environment that holds the path of the library."""


class BackendCompiler(ExtensionCompiler):
    """C++ that is built quickly, and again when a file beside it changes."""

    def fingerprint(self) -> str:
        return repr((QUICK, super().fingerprint()))

    def flags(self, command: Sequence[str], source: Path) -> list[str]:
        return [*super().flags(command, source), *QUICK]

    def dependencies(self, files: Sequence[str]) -> list[str]:
        return [*super().dependencies(files), *map(str, sorted(SOURCE.parent.iterdir()))]


def library() -> Path:
    """Return the library of the backend, built if need be."""
    return find_or_build(SOURCE, (), BackendCompiler())[1]


def variables() -> tuple[tuple[str, str], ...]:
    """Return what the environment is given so that `import torch` loads the backend, as one that is installed."""
    folders = [str(FOLDER.parent), str(FOLDER / "installed"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return (("PYTHONPATH", os.pathsep.join(folders)), (LIBRARY, str(library())))


def environment() -> dict[str, str]:
    """Return the environment of a process that has the second device."""
    return {**os.environ, **dict(variables())}


QUICK = ("-O0", "-g0")  # a third of the time to build
