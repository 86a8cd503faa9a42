"""How a process that ran checks ended before its time, as a result of the op that it was checking."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from custom_autograd.core.locations import format_location
from custom_autograd.kernels.compilers import end_of
from custom_autograd.verification.report import Result

LOST_DEVICE = "a kernel met an index beyond its tensor on the device, on which nothing runs in this process afterwards"
"""What CUDA's "device-side assert" means, almost always."""

MOST_LINES = 20
"""Lines of faulthandler's output that a report keeps."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The check and the sample that a process began last; the sample is empty before the first one."""

    check: str = "all checks"
    code: str = ""
    group: str = ""
    sample: str = ""


@dataclass(slots=True)
class Heard:
    """Messages of a process so far."""

    results: list[Result] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    call: str = ""

    def hear(self, value: object) -> None:
        """Add one message."""
        if isinstance(value, Result):
            self.results.append(value)
        elif isinstance(value, Progress):
            self.progress = value
        elif isinstance(value, dict):
            self.sources.update(value)
        else:
            self.call = str(value)


@dataclass(frozen=True, slots=True)
class Crash:
    """The end of a process that was to go on.

    Args:
        op: the op that was being checked.
        progress: the check and the sample.
        exit_code: as `multiprocessing.Process.exitcode` has it: a negative signal, or a code.
        seed: where random numbers began.
        trace: what faulthandler wrote.
        call: the last call of the op that began, when the check ran alone again; None if it did not crash then.
        reproduce: what to run to see it again.
    """

    op: str
    progress: Progress
    exit_code: int | None
    seed: int = 0
    trace: str = ""
    call: str | None = ""
    reproduce: str = ""

    def result(self) -> Result:
        """Return the result that reports show."""
        lines = [f"the process {end_of(self.exit_code)}; the checks that follow were not run"]
        if self.call is None:
            lines.append("it does not end when this check runs alone: an earlier one may have damaged its memory")
        lines += [LOST_DEVICE] if "device-side assert" in self.trace else []
        lines += [f"last call: {self.call}"] if self.call else []
        lines += [f"to reproduce: {self.reproduce}"] if self.reproduce else []
        lines += frames_of(self.trace)
        progress = self.progress
        sample = progress.sample or "all samples"
        return Result(
            self.op,
            progress.check,
            sample,
            "error",
            "\n".join(lines),
            code=progress.code,
            seed=self.seed,
            group=progress.group,
        )


def frames_of(trace: str) -> list[str]:
    """Return what faulthandler wrote with short file names, down to the check: what called the check is no news."""
    found: list[str] = []
    for line in trace.splitlines():
        frame = FRAME.fullmatch(line)
        if frame is None:
            found += [line.strip()] if line.strip() else []
            continue
        path, number, name = frame.groups()
        found.append(f"  {format_location(path, number)} {name}")
        if ((Path(path).parent == CHECKS or Path(path) == FIRST_CALL) and name == "run") or len(found) == MOST_LINES:
            break
    return found


FRAME = re.compile(r'\s*File "(.*)", line (\d+) in (.*)')

CHECKS = Path(__file__).parents[1] / "checks"
FIRST_CALL = Path(__file__).parents[1] / "harness" / "first_call.py"
