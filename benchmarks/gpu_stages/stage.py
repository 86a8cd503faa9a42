"""Gives every stage the device, its deadline, and the file to which it appends each figure at once.

A line of results.jsonl is one of
    {"stage": RUN, "device": D, "stages": [S]} the device, and the stages that were asked for; written by gpu.py
    {"stage": S, "planned": [NAME, ...]}       what the stage will do
    {"stage": S, "name": NAME, ...facts}       one of these is done, well or not
    {"stage": S, "ended": HOW, "seconds": N}   written by gpu.py
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[1]
ROOT = BENCHMARKS.parent
RESULTS = "results.jsonl"
RUN = "run"
LOCK = ".lock"  # of the device, while the gallery is measured
IMPORTED_FROM = (BENCHMARKS, BENCHMARKS / "gpu_stages", ROOT / "examples", ROOT / "examples" / "gallery", ROOT)


@dataclass(frozen=True)
class Stage:
    """One stage while it runs.

    Attributes:
        name: its name in the plan.
        device: "cuda", or the device of a rehearsal.
        out: the folder of the results.
        until: when it is stopped, in seconds since the epoch.
        is_tiny: use sizes for a rehearsal.
    """

    name: str
    device: str
    out: Path
    until: float
    is_tiny: bool

    @property
    def seconds_left(self) -> float:
        """Return the seconds until the deadline."""
        return self.until - time.time()

    def plan(self, names: Sequence[str]) -> None:
        """Record the names of what will be done."""
        append(self.out, {"stage": self.name, "planned": list(names)})

    def add(self, name: str, **facts: Any) -> None:
        """Record what has come of one of them."""
        append(self.out, {"stage": self.name, "name": name, **facts})

    def options(self) -> list[str]:
        """Return the options with which a process of this stage is started."""
        options = ["--stage", self.name, "--device", self.device, "--out", str(self.out), "--until", str(self.until)]
        return [*options, "--tiny"] if self.is_tiny else options


def append(out: Path, line: dict[str, Any]) -> None:
    """Append a line to the results in one write, so that lines of several processes do not mix."""
    data = (json.dumps(line, ensure_ascii=False, default=str) + "\n").encode()
    file = os.open(out / RESULTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, data)
    finally:
        os.close(file)


def read(out: Path) -> list[dict[str, Any]]:
    """Return the lines of the results, except one that is cut off."""
    path = out / RESULTS
    return list(parsed(path.read_text(encoding="utf-8", errors="replace"))) if path.exists() else []


def parsed(text: str) -> Iterator[dict[str, Any]]:
    """Yield the lines that are whole."""
    for line in text.splitlines():
        with suppress(json.JSONDecodeError):
            yield json.loads(line)


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def this_stage(parser: argparse.ArgumentParser | None = None) -> tuple[Stage, argparse.Namespace]:
    """Return the stage that the command line describes, and its other options; imports find the gallery from now on."""
    parser = parser or argparse.ArgumentParser()
    for name in ("--stage", "--device", "--out", "--until"):
        parser.add_argument(name, required=True)
    parser.add_argument("--tiny", action="store_true")
    found = parser.parse_args()
    sys.path[:0] = [str(folder) for folder in IMPORTED_FROM if str(folder) not in sys.path]
    return Stage(found.stage, found.device, Path(found.out), float(found.until), found.tiny), found


def environment(*folders: Path) -> dict[str, str]:
    """Return the variables with which processes import from folders, by default all that stages import from."""
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    found = list(dict.fromkeys([*map(str, folders or IMPORTED_FROM), *others]))
    return {"PYTHONPATH": os.pathsep.join(found), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
