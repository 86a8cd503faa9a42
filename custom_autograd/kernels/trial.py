"""Whether a new library ends the process that loads it, found out in a process that may end.

What C++ throws while a library is loaded cannot be caught: a schema that does not parse, a function that is defined
twice, a static variable whose initialiser throws. The trial loads torch's libraries, not Python's torch: 0.3 s.
"""

from __future__ import annotations

import sys
from pathlib import Path

from custom_autograd.kernels.commands import run
from custom_autograd.kernels.compilers import TORCH


def last_words(library: Path) -> str | None:
    """Return what a process said that ended while it loaded a library; None if the library ends no process.

    Torch 2.11 goes on without what it cannot register, and only prints that: such a library is refused too. A library
    that cannot be loaded ends no process: why not is said where it is to be loaded.
    """
    if not sys.executable:  # Python within another program: nothing to try it with
        return None
    said = run([sys.executable, "-I", "-S", "-c", LOAD, str(TORCH / "lib"), str(library)]).stdout
    words, _, rest = said.partition(BEGUN)[2].partition(ENDED)
    if BEGUN not in said or (rest and SWALLOWED not in words):
        return None
    return words.strip() or "(it said nothing)"


BEGUN, ENDED = "custom_autograd: loading begins", "custom_autograd: loading ended"
SWALLOWED = "Exception in aoti_torch"
LOAD = f"""
import ctypes, pathlib, resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try:
    for torch in pathlib.Path(sys.argv[1]).glob("libtorch.*"):
        ctypes.CDLL(str(torch))
    print({BEGUN!r}, flush=True)
    ctypes.CDLL(sys.argv[2])
except OSError:
    pass
print({ENDED!r}, flush=True)
"""
