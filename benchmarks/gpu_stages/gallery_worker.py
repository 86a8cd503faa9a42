"""Measures the cases of one file: agreement in higher precision, then times, forward and backward, one turn at a time.

A turn holds a lock on the device; the first calls of a callable, which compile, run before the turn.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._functorch.config  # for one setting, in main
from stage import BENCHMARKS, Stage, this_stage

SECONDS = 0.4  # of one mode of one case, for all callables together


@contextmanager
def turn(stage: Stage) -> Iterator[None]:
    """Hold the device alone, as far as other processes of this stage go."""
    with (stage.out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            free_memory()


def free_memory() -> None:
    """Give memory back to the device, for other processes."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def first_line(error: BaseException) -> str:
    """Return the type of an error and its first line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"


def prepared(work: Callable[..., Any], case: Any, device: str) -> str | None:
    """Call a callable forward and backward, which compiles what it compiles; return why it does not run."""
    from agreement import backward_of

    try:
        if (backward := backward_of(case, work, device)) is not None:
            backward()
        with torch.no_grad():
            work(*case.arguments(device))
    except Exception as error:  # noqa: BLE001 - a peer that does not run is no reason to measure nothing
        return first_line(error)
    return None


def agreeing(works: dict[str, Callable[..., Any]], case: Any, stage: Stage) -> dict[str, Callable[..., Any]]:
    """Return the callables that compute what the reference does in higher precision; record the others."""
    from gpu_case import errors, exact_values

    exact = exact_values(case, stage.device)
    agreed = {}
    for name, work in works.items():
        try:
            found = errors(case, work, stage.device, exact)
        except Exception as error:  # noqa: BLE001 - as above
            stage.add(f"{case.name}: {name}: agreement", problem=first_line(error))
            free_memory()
            continue
        agreed[name] = work
        if name == "op":
            stage.add(f"{case.name}: {name}: agreement", errors=found)
    return agreed


def forward_works(works: dict[str, Callable[..., Any]], case: Any, device: str) -> dict[str, Callable[[], Any]]:
    """Return calls without gradients, all of the same arguments."""
    from agreement import fresh_arguments

    arguments = fresh_arguments(case, device)
    return {name: lambda work=work: work(*arguments) for name, work in works.items()}


def backward_works(works: dict[str, Callable[..., Any]], case: Any, device: str) -> dict[str, Callable[[], Any]]:
    """Return backward passes over graphs that are kept."""
    from agreement import backward_of

    found = {name: backward_of(case, work, device) for name, work in works.items()}
    return {name: backward for name, backward in found.items() if backward is not None}


def measure_case(case: Any, works: dict[str, Callable[..., Any]], stage: Stage, copy: float) -> None:
    """Measure both modes, beside the op; each figure is written at once."""
    from timing import time_in_turns

    works = agreeing(works, case, stage)
    free_memory()
    for mode, make, moved in (
        ("forward", forward_works, case.bytes_moved),
        ("backward", backward_works, case.backward_bytes),
    ):
        context = torch.no_grad() if mode == "forward" else torch.enable_grad()
        with context:
            bound = make(works, case, stage.device)
            times = time_in_turns(bound, stage.device, 0.0 if stage.is_tiny else SECONDS) if bound else {}
        del bound
        free_memory()
        for name, figures in times.items():
            record(case, name, mode, figures, times.get("op"), moved, stage, copy)


def record(
    case: Any,
    name: str,
    mode: str,
    figures: tuple[float, float],
    own: Any,
    moved: int | None,
    stage: Stage,
    copy: float,
) -> None:
    """Write one figure, with its ratio to the op and the share of the bandwidth of a copy."""
    facts: dict[str, Any] = {"case": case.name, "family": case.family, "callable": name, "mode": mode}
    facts |= {"microseconds": figures[0], "median": figures[1]}
    if own is not None and name != "op":
        facts["op / it"] = round(own[1] / figures[1], 3)
    if moved is not None:
        facts["GB/s"] = round(moved / figures[1] / 1e3, 1)
        facts["of a copy"] = round(facts["GB/s"] / copy, 3)
    if case.flops is not None:
        facts["TFLOP/s"] = round(case.flops * (1 if mode == "forward" else 2.5) / figures[1] / 1e6, 1)
    stage.add(f"{case.name}: {name}: {mode}", **facts)


def attempt(case: Any, works: dict[str, Callable[..., Any]], stage: Stage, copy: float) -> None:
    """Prepare the callables of a case, then measure those that run in one turn; nothing that fails ends the file."""
    runnable = {}
    for name, work in works.items():
        problem = prepared(work, case, stage.device)
        free_memory()
        if problem is None:
            runnable[name] = work
        else:
            stage.add(f"{case.name}: {name}: first call", problem=problem)
    with turn(stage):
        try:
            measure_case(case, runnable, stage, copy)
        except Exception as error:  # noqa: BLE001 - out of memory, say: the next case may fit
            stage.add(f"{case.name}: measuring", problem=first_line(error))


def main() -> None:
    """Measure every case without compilation, then with torch.compile beside the op."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--tune", action="store_true")
    stage, options = this_stage(parser)
    from measure_gallery import load_cases, load_native_calls
    from timing import copy_bandwidth

    torch._functorch.config.donated_buffer = False  # a graph that is kept needs what forward saved again
    load_native_calls()
    found = load_cases(BENCHMARKS / "gpu_cases" / f"{options.file}.py", stage.is_tiny)
    cases = list({case.name: case for case in found}.values())  # in a rehearsal several have the same sizes
    stage.plan([f"{case.name}: {name}: forward" for case in cases for name in ("op", "compiled")])
    with turn(stage):
        copy = copy_bandwidth(stage.device, 2**16 if stage.is_tiny else 2**30)
        stage.add(f"copy, seen by {options.file}", **{"GB/s": copy})
    for case in cases:
        attempt(case, {"op": case.op, "eager": case.reference, **case.peers}, stage, copy)
    for case in cases:
        torch.compiler.reset()
        attempt(case, {"op": case.op, "compiled": torch.compile(case.to_compile or case.reference)}, stage, copy)


if __name__ == "__main__":
    main()
