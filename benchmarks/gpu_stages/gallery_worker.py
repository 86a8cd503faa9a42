"""Measures the cases of one file: agreement in higher precision, then times, forward and backward, one turn at a time.

A turn holds a lock on the device; the first calls of a callable, which compile, run before the turn.
"""

from __future__ import annotations

import argparse
import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._functorch.config  # for one setting, in main
from gpu_case import GpuCase, errors, exact_values
from measure_gallery import load_cases, load_native_calls
from stage import BENCHMARKS, LOCK, Stage, this_stage
from timing import copy_bandwidth, time_in_turns
from tuning import build_candidates, tune
from workload import backward_works, first_line, forward_works, free_memory

SECONDS = 0.4  # of one mode of one case, for all callables together
Works = dict[str, Callable[..., Any]]


@contextmanager
def turn(stage: Stage) -> Iterator[None]:
    """Hold the device alone, as far as other processes of this stage go."""
    with (stage.out / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            free_memory()


@contextmanager
def recorded(name: str, stage: Stage) -> Iterator[None]:
    """Record an exception instead of raising it: out of memory, say, and the next case may fit."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever is raised is recorded
        stage.add(name, problem=first_line(error))


def prepared(works: Works, case: GpuCase, stage: Stage) -> Works:
    """Call each forward and backward, which compiles what it compiles, and return those that run."""
    found = {}
    for name, work in works.items():  # a peer that does not run is no reason to measure nothing
        with recorded(f"{case.name}: {name}: first call", stage):
            for backward in backward_works({name: work}, case, stage.device).values():
                backward()
            with torch.no_grad():
                work(*case.arguments(stage.device))
            found[name] = work
        free_memory()
    return found


def agreeing(works: Works, case: GpuCase, stage: Stage) -> Works:
    """Return the callables that compute what the reference does in higher precision; record the others."""
    exact = exact_values(case, stage.device)
    agreed = {}
    for name, work in works.items():
        with recorded(f"{case.name}: {name}: agreement", stage):
            found = errors(case, work, stage.device, exact)
            agreed[name] = work
            if name == "op":
                stage.add(f"{case.name}: {name}: agreement", errors=found)
        free_memory()
    return agreed


def measure_case(case: GpuCase, works: Works, stage: Stage, copy: float) -> None:
    """Measure both modes of what agrees; each figure is written at once."""
    works = agreeing(works, case, stage)
    seconds = 0.0 if stage.is_tiny else SECONDS
    with torch.no_grad():
        times = time_in_turns(forward_works(works, case, stage.device), stage.device, seconds)
    record(case, "forward", times, case.bytes_moved, stage, copy)
    free_memory()
    times = time_in_turns(backward_works(works, case, stage.device), stage.device, seconds)
    record(case, "backward", times, case.backward_bytes, stage, copy)


def record(
    case: GpuCase, mode: str, times: dict[str, tuple[float, float]], moved: int | None, stage: Stage, copy: float
) -> None:
    """Write the times of one mode, with the ratio of the op to each and the share of the bandwidth of a copy."""
    for name, (shortest, median) in times.items():
        facts: dict[str, Any] = {"case": case.name, "family": case.family, "callable": name, "mode": mode}
        facts |= {"microseconds": shortest, "median": median}
        if "op" in times and name != "op":
            facts["op / it"] = round(times["op"][1] / median, 3)
        if moved is not None:
            facts["of a copy"] = round(moved / median / 1e3 / copy, 3)
        if case.flops is not None:
            facts["TFLOP/s"] = round(case.flops * (1 if mode == "forward" else 2.5) / median / 1e6, 1)
        stage.add(f"{case.name}: {name}: {mode}", **facts)


def attempt(case: GpuCase, works: Works, stage: Stage, copy: float) -> None:
    """Prepare the callables of a case, then measure those that run in one turn; nothing that fails ends the file."""
    runnable = prepared(works, case, stage)
    with turn(stage), recorded(f"{case.name}: measuring", stage):
        measure_case(case, runnable, stage, copy)


def measure_all(cases: list[GpuCase], file: str, stage: Stage) -> None:
    """Measure every case without compilation, then with torch.compile beside the op."""
    compiled = cases[:1] if stage.is_tiny else cases
    names = [f"{case.name}: op: forward" for case in cases] + [f"{case.name}: compiled: forward" for case in compiled]
    stage.plan(names)
    with turn(stage):
        copy = copy_bandwidth(stage.device, 2**16 if stage.is_tiny else 2**30)
        stage.add(f"copy, seen by {file}", **{"GB/s": round(copy, 1)})
    for case in cases:
        attempt(case, {"op": case.op, "eager": case.reference, **case.peers}, stage, copy)
    for case in compiled:
        torch.compiler.reset()
        attempt(case, {"op": case.op, "compiled": torch.compile(case.to_compile or case.reference)}, stage, copy)


def tune_all(cases: list[GpuCase], stage: Stage) -> None:
    """Time the candidates of each kernel, at the first case that launches it."""
    stage.plan([f"{case.name}: tuned" for case in cases])
    seen = set[str]()
    for case in cases:
        with recorded(f"{case.name}: tuned", stage):
            kernels = build_candidates(case, stage.device, seen)
            with turn(stage):
                tune(case, kernels, stage)
            seen |= kernels.keys()
            stage.add(f"{case.name}: tuned", kernels=list(kernels))


def main() -> None:
    """Measure or tune the file that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--tune", action="store_true")
    stage, options = this_stage(parser)
    torch._functorch.config.donated_buffer = False  # a graph that is kept needs what forward saved again
    load_native_calls()
    found = load_cases(BENCHMARKS / "gpu_cases" / f"{options.file}.py", stage.is_tiny)
    cases = list({case.name: case for case in found}.values())  # in a rehearsal several have the same sizes
    tune_all(cases, stage) if options.tune else measure_all(cases, options.file, stage)


if __name__ == "__main__":
    main()
