"""Try a new library in a process that it may end: load it, and raise an exception through it.

What C++ throws while a library is loaded cannot be caught: a schema that does not parse, a function that is defined
twice, a static variable whose initialiser throws. And a kernel that refuses its input ends the process if the library
holds a C++ runtime besides torch's, as some compilers link it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from custom_autograd.kernels import trial_process
from custom_autograd.kernels.compilers import TORCH, end_of, run
from custom_autograd.kernels.trial_process import ARRIVED, BEGUN, LOADED


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong with a library.

    Attributes:
        step: when it did.
        words: the output of the process, and how it ended.
    """

    step: Literal["loading", "raising"]
    words: str


def failure_of(library: Path, native: Path | None = None) -> Failure | None:
    """Return what goes wrong when a library is loaded, or when its kernels raise; None if nothing does.

    A library that cannot be loaded ends no process: the reason is given where it is loaded for use. Torch 2.11 goes on
    without what it cannot register, and only prints that: such a library fails the trial too.
    """
    if not sys.executable:  # Python within another program: nothing to try it with
        return None
    command = [sys.executable, "-I", "-S", trial_process.__file__, str(TORCH / "lib"), str(library)]
    try:
        ended = run([*command, *([str(native)] if native else [])])
    except (FileNotFoundError, PermissionError):  # the Python of this process is not there any more
        return None
    loading, is_loaded, raising = ended.stdout.partition(BEGUN)[2].partition(LOADED)
    if BEGUN not in ended.stdout:
        return None
    if not is_loaded or SWALLOWED in loading:
        return Failure("loading", loading.strip() or "(it said nothing)")
    if ARRIVED not in raising:
        return Failure("raising", f"{raising.strip()}\nthe process {end_of(ended.returncode)}".strip())
    return None


SWALLOWED = "Exception in aoti_torch"
