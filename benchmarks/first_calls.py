"""What declaring an op and its first calls cost: in a process that has done so before, and for 1,000 ops in a new one.

In a new process the first op of `torch.library` imports Dynamo; the first calls of later ones are measured without.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peers
import torch

from custom_autograd import Sample, custom_op
from custom_autograd.benchmarking.interleaved import Timing

NUMBERS = itertools.count()
KEPT: list[Any] = []
ROUNDS = 200
OPS = 1000
PROCESSES = 5
STEPS = ("no grad", "forward", "backward")


def declare_ours() -> Any:
    """An op with fake, backward and samples."""
    op = custom_op(f"bench::first_{next(NUMBERS)}", peers.kernel)
    op.register_fake(lambda x, y: torch.empty_like(x))
    op.register_backward(lambda grad, x, y: (grad * y, grad * x))
    op.register_samples(lambda make: [Sample(make(3), make(3))])
    KEPT.append(op)
    return op


def declare_theirs() -> Any:
    """The same with torch.library, which has no samples."""
    op = torch.library.custom_op(f"bench::first_{next(NUMBERS)}", peers.kernel, mutates_args=())
    op.register_fake(lambda x, y: torch.empty_like(x))
    op.register_autograd(peers.backward, setup_context=peers.save)
    KEPT.append(op)
    return op


DECLARE = {"": declare_ours, "torch.library ": declare_theirs}


def first_calls() -> dict[str, Timing]:
    """The first call without gradients, the first with gradients after that, and the first backward of ops in turns."""
    plain, recorded = torch.rand(8), torch.rand(8, requires_grad=True)
    found: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        found.setdefault(name, []).append((time.perf_counter() - start) * 1e6)
        return result

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for declare, _ in itertools.product(DECLARE.values(), range(3)):
            declare()(recorded, plain).backward(plain)
        for _, (who, declare) in itertools.product(range(ROUNDS), DECLARE.items()):
            op = declare()
            timed(f"{who}first call | no grad", lambda op=op: op(plain, plain))
            out = timed(f"{who}first call | forward", lambda op=op: op(recorded, plain))
            timed(f"{who}first call | backward", lambda out=out: out.backward(plain))
    finally:
        if was_enabled:
            gc.enable()
    return {name: Timing(min(times), statistics.median(times), len(times), 1) for name, times in found.items()}


def thousand_ops() -> dict[str, Timing]:
    """The time in which a new process that has imported torch declares and calls 1,000 ops, µs."""
    found: dict[str, list[float]] = {}
    modes = {"no grad": "1", "forward + backward": "2"}
    for _, (who, (mode, argument)) in itertools.product(range(PROCESSES), itertools.product(DECLARE, modes.items())):
        command = [sys.executable, str(Path(__file__).with_name("thousand_ops.py")), who.strip() or "ours", argument]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found.setdefault(f"{who}1,000 ops | {mode}", []).append(float(output))
    return {name: Timing(min(times), statistics.median(times), len(times), 1) for name, times in found.items()}
