"""Measures several functions in turns, so that what the machine does meanwhile happens to all of them."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Duration of one call.

    Attributes:
        minimum: of all rounds, µs: what the call itself costs, on a machine that others use too.
        median: of all rounds, µs.
        rounds: how many there were.
        calls: how many calls a round makes.
    """

    minimum: float
    median: float
    rounds: int
    calls: int


def measure(cases: Mapping[str, Work], *, seconds: float, finish: Work = lambda: None) -> dict[str, Timing]:
    """Time functions without arguments in turns, each time in another order.

    Args:
        cases: by name; each is called before it is timed.
        seconds: for all of them together, wall time, s.
        finish: runs at the end of each round of each case, within its time: such as `torch.cuda.synchronize`.

    Returns:
        By name.
    """
    calls = {name: _calls_per_round(work, finish) for name, work in cases.items()}
    rounds: dict[str, list[float]] = {name: [] for name in cases}
    # What ran before leaves its mark on caches and on free memory: no case always comes after the same other one.
    order, generator = list(cases), random.Random(0)
    end = time.perf_counter() + seconds
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        while time.perf_counter() < end or not all(len(times) >= 5 for times in rounds.values()):
            generator.shuffle(order)
            for name in order:
                rounds[name].append(_round(cases[name], calls[name], finish))
    finally:
        if was_enabled:
            gc.enable()
    return {
        name: Timing(min(times), statistics.median(times), len(times), calls[name]) for name, times in rounds.items()
    }


def _round(work: Work, calls: int, finish: Work) -> float:
    """Return the time of a call, µs."""
    start = time.perf_counter()
    for _ in range(calls):
        work()
    finish()
    return (time.perf_counter() - start) / calls * 1e6


def _calls_per_round(work: Work, finish: Work) -> int:
    """Return how many calls take about 2 ms, after some that warm up."""
    for _ in range(3):
        work()
    once = min(_round(work, 3, finish) for _ in range(3))
    return max(1, min(1000, int(2000 / once)))
