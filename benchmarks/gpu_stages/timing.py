"""Times callables on a device in turns, by its own events, with nothing of theirs left in its caches."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

Work = Callable[[], Any]
FLUSHED = 2**29  # bytes, written before each call: more than the L2 cache, and while the host gets to the kernel
FEWEST, MOST = 5, 60  # rounds


def time_in_turns(works: Mapping[str, Work], device: str, seconds: float) -> dict[str, tuple[float, float]]:
    """Return the shortest and the median time of each, µs; each is called before it is timed."""
    clock = time_with_events if device.startswith("cuda") else time_on_host
    flushed = torch.empty(FLUSHED if device.startswith("cuda") else 1, dtype=torch.uint8, device=device)
    begin = time.perf_counter()
    clock(works, 1, flushed)
    once = time.perf_counter() - begin
    rounds = max(FEWEST, min(MOST, int(seconds / max(once, 1e-6))))
    times = clock(works, rounds, flushed)
    return {name: (round(min(found), 2), round(statistics.median(found), 2)) for name, found in times.items()}


def shuffled(names: list[str], rounds: int) -> list[list[str]]:
    """Return an order for each round: no callable always comes after the same other one."""
    generator = random.Random(0)
    return [generator.sample(names, len(names)) for _ in range(rounds)]


def time_with_events(works: Mapping[str, Work], rounds: int, flushed: torch.Tensor) -> dict[str, list[float]]:
    """Return the times between two events of the stream, µs: what the host does meanwhile is hidden by the flush."""
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in works}
    for order in shuffled(list(works), rounds):
        for name in order:
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            flushed.zero_()
            pair[0].record()
            works[name]()
            pair[1].record()
            events[name].append(pair)
    torch.cuda.synchronize()
    return {name: [1000 * begin.elapsed_time(end) for begin, end in pairs] for name, pairs in events.items()}


def time_on_host(works: Mapping[str, Work], rounds: int, flushed: torch.Tensor) -> dict[str, list[float]]:
    """Return the times of a device that computes while the host waits, µs."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for order in shuffled(list(works), rounds):
        for name in order:
            begin = time.perf_counter()
            works[name]()
            times[name].append(1e6 * (time.perf_counter() - begin))
    return times


def copy_bandwidth(device: str, count: int) -> float:
    """Return the bandwidth of a copy of `count` bytes within the device, GB/s: bytes read and bytes written."""
    source = torch.empty(count, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    shortest, _ = time_in_turns({"copy": lambda: target.copy_(source)}, device, 0.3)["copy"]
    return 2 * count / shortest / 1e3
