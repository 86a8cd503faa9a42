"""What PyTorch's allocators gave out and took back while a function ran, as the profiler notes it.

- `profiler.profile.profiler.kineto_results`: the raw events; the public ones have sums for each operation only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile

MEMORY = "[memory]"


def allocations(work: Callable[[], Any]) -> list[int]:
    """Run a function and return bytes in the order of allocations on the CPU; negative if they were given back."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as found:
        kept = work()
    assert found.profiler is not None
    assert found.profiler.kineto_results is not None  # there is a cycle
    events = [event for event in found.profiler.kineto_results.events() if event.name() == MEMORY]
    events.sort(key=lambda event: event.start_ns())
    del kept
    return [event.nbytes() for event in events]
