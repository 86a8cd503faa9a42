"""The stages of a run, in the order of what they are worth per second, and the share of the time that each has."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Planned:
    """One stage.

    Attributes:
        name: what `--stages` calls it.
        answers: what is known after it.
        script: the file of this folder that runs it.
        more: options of the script.
    """

    name: str
    answers: str
    script: str
    more: tuple[str, ...] = ()

    def command(self, options: Sequence[str]) -> list[str]:
        """Return the command of its process."""
        return [sys.executable, str(HERE / self.script), *self.more, *options]


@dataclass(frozen=True)
class Wave:
    """Stages that run at the same time: those that measure run alone.

    Attributes:
        share: of the whole time; what a wave leaves over goes to those after it.
        stages: of the wave.
    """

    share: float
    stages: tuple[Planned, ...]


# The first wave builds what the others wait for; AOTInductor compiles meanwhile.
PLAN = (
    Wave(
        0.20,
        (
            Planned("trial", "do kernels build, and do their exceptions arrive", "probes.py", ("--module", "trial")),
            Planned("exported", "do programs of AOTInductor run ops", "probes.py", ("--module", "exported")),
        ),
    ),
    Wave(
        0.27,
        (
            Planned("tests", "do the tests pass that need a GPU or name CUDA", "suite.py"),
            Planned("checks", "what the checks find on the gallery's ops on the device", "checks.py"),
        ),
    ),
    Wave(0.08, (Planned("calls", "what a call costs on tensors of the device, and on the CPU", "calls.py"),)),
    Wave(0.33, (Planned("gallery", "how fast the gallery is on layers of real models", "gallery_files.py"),)),
    Wave(0.12, (Planned("tune", "which launch of a Triton kernel is fastest", "gallery_files.py", ("--tune",)),)),
)


def chosen(names: Sequence[str]) -> tuple[Wave, ...]:
    """Return the waves with the named stages alone; all without names.

    Raises:
        ValueError: if a name is not that of a stage.
    """
    known = [stage.name for wave in PLAN for stage in wave.stages]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"there is no stage {', '.join(unknown)}; there are {', '.join(known)}")
    kept = [(wave.share, tuple(s for s in wave.stages if not names or s.name in names)) for wave in PLAN]
    return tuple(Wave(share, stages) for share, stages in kept if stages)
