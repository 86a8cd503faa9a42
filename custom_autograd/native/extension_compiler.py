"""The compiler of the native library: that of C++ kernels, with the headers of Python and of torch's own extensions."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from custom_autograd.kernels.compilers import TORCH, CppCompiler


class ExtensionCompiler(CppCompiler):
    """C++ that uses torch's Python objects and the nodes of its graph, which are not in the stable ABI."""

    def fingerprint(self) -> str:
        """Return the same as for a kernel, and which Python this is."""
        return repr((super().fingerprint(), sys.version, sysconfig.get_config_var("SOABI")))

    def flags(self, command: Sequence[str], source: Path) -> list[str]:
        """Return those for a kernel, and where the further headers are."""
        include = TORCH / "include"
        folders = (include / "torch" / "csrc" / "api" / "include", Path(sysconfig.get_paths()["include"]))
        return [*super().flags(command, source), "-w", *(f"-isystem{folder}" for folder in (include, *folders))]

    def libraries(self) -> list[str]:
        """Return those for a kernel, and torch's Python part."""
        return [*super().libraries(), "-ltorch_python"]
