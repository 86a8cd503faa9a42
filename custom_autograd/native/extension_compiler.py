"""The compiler of the native library: that of C++ kernels, with the headers of Python and of torch's own extensions."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import torch

from custom_autograd.kernels.compilers import PLATFORM, TORCH, CppCompiler


class ExtensionCompiler(CppCompiler):
    """C++ that uses torch's Python objects and the nodes of its graph, which are not in the stable ABI."""

    def targets(self) -> list[str]:
        """Return the platform, torch and Python: neither torch's graph nor Python's objects have a stable ABI here."""
        version = ".".join(torch.__version__.split(".")[:2])
        return [f"{PLATFORM}-torch{version}-{sys.implementation.cache_tag}"]

    def fingerprint(self) -> str:
        """Return the same as for a kernel, and which Python this is."""
        return repr((SMALL, super().fingerprint(), sys.version, sysconfig.get_config_var("SOABI")))

    def flags(self, command: Sequence[str], source: Path) -> list[str]:
        """Return those for a kernel, and where the further headers are."""
        include = TORCH / "include"
        folders = (include / "torch" / "csrc" / "api" / "include", Path(sysconfig.get_paths()["include"]))
        return [*super().flags(command, source), *SMALL, "-w", *(f"-isystem{folder}" for folder in (include, *folders))]

    def libraries(self) -> list[str]:
        """Return those for a kernel, and torch's Python part."""
        return [*super().libraries(), "-ltorch_python"]

    # NOTE [what the native library depends on]
    # It is found by a thread in the background. Each `os.stat` gives up the GIL, and waits up to 5 ms for it if other
    # threads run Python: for the 3,500 headers of torch, Python and the system that took 5 s. What is loaded has to fit
    # torch's binaries, so their size and time stand for the headers; `fingerprint` has the version of Python.
    def dependencies(self, files: Sequence[str]) -> list[str]:
        """Return the sources of this package, and torch's binaries in place of what others have installed."""
        binaries = (str(TORCH / "lib" / f"{name}{suffix}") for name in BINARIES for suffix in (".so", ".dylib"))
        return [*(file for file in files if file.startswith(OWN)), *filter(os.path.isfile, binaries)]


# A call runs little of much code, and fetching that costs the processor more than running it. So functions are inlined
# less than with -O3, and those of other libraries are called without a jump table: a forward and backward takes 0.97.
SMALL = ("-O2", "-fno-plt")
OWN = f"{Path(__file__).parents[1]}{os.sep}"
BINARIES = ("libtorch_python", "libtorch_cpu", "libc10")
