"""The times of first calls of ops: in a process that has called others, and of one or 1,000 ops in a new process.

In a new process, the first call of an op of `torch.library` imports Dynamo; the first calls of later ones do not.
"""

from __future__ import annotations

import gc
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from declarations import DECLARE

from custom_autograd.benchmarking.interleaved import Timing

NUMBERS = itertools.count()
KEPT: list[Any] = []
PROCESSES = 5
SCRIPT = Path(__file__).with_name("new_process.py")
COUNTS = {"1 op": 1, "1,000 ops": 1000}
MODES = {"no grad": "forward", "forward + backward": "backward"}


def first_calls(rounds: int) -> dict[str, Timing]:
    """Return the times of the first call without gradients, the first with, and its backward, of ops in turns."""
    plain, recorded = torch.rand(8), torch.rand(8, requires_grad=True)
    found: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        found.setdefault(name, []).append((time.perf_counter() - start) * 1e6)
        return result

    def new(declare: Callable[[str], Any]) -> Any:
        KEPT.append(declare(f"bench::first_{next(NUMBERS)}"))
        return KEPT[-1]

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for declare, _ in itertools.product(DECLARE.values(), range(3)):
            new(declare)(recorded, plain).backward(plain)
        for _, (prefix, declare) in itertools.product(range(rounds), DECLARE.items()):
            op = new(declare)
            timed(f"{prefix}first call | no grad", lambda op=op: op(plain, plain))
            out = timed(f"{prefix}first call | forward", lambda op=op: op(recorded, plain))
            timed(f"{prefix}first call | backward", lambda out=out: out.backward(plain))
    finally:
        if was_enabled:
            gc.enable()
    return _timings(found)


def new_processes() -> dict[str, Timing]:
    """Return the times in which a new process that has imported torch declares one op, or 1,000, and calls each."""
    found: dict[str, list[float]] = {}
    with process_runner() as run:
        for _, prefix, count, mode in itertools.product(range(PROCESSES), DECLARE, COUNTS, MODES):
            output = run(str(SCRIPT), prefix, str(COUNTS[count]), MODES[mode])
            found.setdefault(f"{prefix}{count} | {mode}", []).append(float(output))
    return _timings(found)


@contextmanager
def process_runner() -> Iterator[Callable[..., str]]:
    """Yield what runs Python with arguments and returns its output; all processes but the first have their bytecode."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as cache:
        environment["PYTHONPYCACHEPREFIX"] = cache

        def run(*arguments: str) -> str:
            command = [sys.executable, *arguments]
            return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

        yield run


def _timings(found: dict[str, list[float]]) -> dict[str, Timing]:
    return {name: Timing(min(times), statistics.median(times), len(times), 1) for name, times in found.items()}
