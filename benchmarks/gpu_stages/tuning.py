"""Times the candidates of each Triton kernel that a case launches, each alone: a table of what to make the default."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from gpu_case import GpuCase, errors, exact_values
from launch_choices import CANDIDATES, FORCED, Launch
from stage import Stage
from timing import time_in_turns
from workload import backward_works, first_line, forward_works, free_memory

SECONDS = 0.15  # of one candidate, for each mode
Candidates = Mapping[str, Sequence[Launch]]


@contextmanager
def forced(launches: Mapping[str, Launch]) -> Iterator[None]:
    """Launch kernels as given."""
    FORCED.update(launches)
    try:
        yield
    finally:
        FORCED.clear()


def works_of(case: GpuCase, device: str) -> dict[str, Callable[[], Any]]:
    """Return the forward of the op without gradients, and its backward."""
    forward = forward_works({"forward": torch.no_grad()(case.op)}, case, device)
    return forward | backward_works({"backward": case.op}, case, device)


def build_candidates(case: GpuCase, device: str, seen: Collection[str]) -> Candidates:
    """Return the kernels that a case launches and that are not seen, all of whose candidates are compiled now."""
    CANDIDATES.clear()
    run_once(case, device)
    kernels = {kernel: found for kernel, found in CANDIDATES.items() if len(found) > 1 and kernel not in seen}
    for number in range(1, max(map(len, kernels.values()), default=0)):
        launches = {kernel: found[number] for kernel, found in kernels.items() if number < len(found)}
        with forced(launches), suppress(Exception):  # too much shared memory, say, is recorded when it is timed
            run_once(case, device)
    return kernels


def run_once(case: GpuCase, device: str) -> None:
    """Call the op, forward and backward."""
    for work in works_of(case, device).values():
        work()
    free_memory()


def tune(case: GpuCase, kernels: Candidates, stage: Stage) -> None:
    """Time every candidate of every kernel; a candidate that computes something else, or does not run, is no choice."""
    exact = exact_values(case, stage.device) if kernels else ([], [])
    for kernel, candidates in kernels.items():
        for number, candidate in enumerate(candidates):
            facts: dict[str, Any] = {"case": case.name, "kernel": kernel, "launch": candidate, "is default": not number}
            try:
                with forced({kernel: candidate}):
                    errors(case, case.op, stage.device, exact)
                    times = time_in_turns(works_of(case, stage.device), stage.device, SECONDS)
                facts |= {mode: median for mode, (_, median) in times.items()}
            except Exception as error:  # noqa: BLE001 - the next candidate may run
                facts["problem"] = first_line(error)
            stage.add(f"{case.name}: {kernel}: {number}", **facts)
            free_memory()
