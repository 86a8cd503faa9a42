"""What each way to build a C++ kernel at run time costs, and how it fails: python benchmarks/build_times.py --out FILE.

Builds, loads and refusals happen in new processes, builds in an empty folder; a build or a load is timed from the
import of the builder, after that of torch, to the first result. Calls take turns in one process.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))  # builders.py stands beside this file

from builders import BUILDERS
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC2701 - as torch's documentation of fake tensors does

from custom_autograd.benchmarking.interleaved import Work, measure
from custom_autograd.benchmarking.machine import describe_machine

# Stands for the compiler in the process that is killed: it says that it runs, and does not end.
STUCK = '#!/bin/sh\ncase "$*" in *.cpp*|*.o*) touch "{folder}/started"; sleep 1000;; esac\nexec {compiler} "$@"\n'
PATIENCE = 60.0  # seconds for a process to find out that the one before it was killed, and to build


def fake() -> Tensor:
    """A tensor without data, as tracing makes."""
    with FakeTensorMode():
        return torch.ones(3)


TENSORS: dict[str, Callable[[], Tensor]] = {
    "fake": fake,
    "meta": lambda: torch.ones(3, device="meta"),
    "lazily negated": lambda: torch.conj(torch.full((3,), 1j)).imag,
    "requires grad": lambda: torch.ones(3, requires_grad=True),
    "wrong dtype": lambda: torch.ones(3, dtype=torch.int32),
}


def first_result(builder: str, folder: Path) -> None:
    """In a child: prints the seconds to the first result."""
    x = torch.ones(3)
    start = time.perf_counter()
    _, times = BUILDERS[builder](folder)
    found = times(x).tolist()
    seconds = time.perf_counter() - start
    assert found == [3.0] * 3
    print(f"{seconds:.3f}")


def refusal(builder: str, folder: Path, tensor: str) -> None:
    """In a child: prints what a tensor leads to."""
    _, times = BUILDERS[builder](folder)
    x = TENSORS[tensor]()
    try:
        out = times(x)
    except Exception as error:  # noqa: BLE001 - what is raised is what is measured
        print(f"raises {type(error).__name__}")
        return
    if tensor == "requires grad":
        print(f"returns a tensor with {'' if out.requires_grad else 'no '}grad_fn")
    else:
        print("is right" if torch.equal(out, 3 * x) else f"is wrong: {out.tolist()}")


def child(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """This script in a new process and process group."""
    command = [sys.executable, __file__, "--child", *arguments]
    environ = os.environ | environment
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, env=environ, stdout=pipe, stderr=nowhere, text=True, start_new_session=True)


def output_of(process: subprocess.Popen[str], seconds: float | None = None) -> str | None:
    """What a child printed last; how it died; None where it has not ended in time, and is ended."""
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None
    if process.returncode < 0:
        return f"ends the process: {signal.Signals(-process.returncode).name}"
    return out.strip().splitlines()[-1] if out.strip() else f"ends the process with status {process.returncode}"


def build_and_load(builder: str, rounds: int) -> dict[str, float]:
    """Seconds of a build in an empty folder and of a load in a new process: the shortest of the rounds."""
    cold, warm = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(float(output_of(child("first_result", builder, folder)) or "nan"))
            warm.append(float(output_of(child("first_result", builder, folder)) or "nan"))
    return {"cold build": min(cold), "warm load": min(warm)}


def after_a_killed_build(builder: str) -> str:
    """What the next process does where one was killed while its compiler ran."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as kept:
        compiler = Path(folder, "c++")
        compiler.write_text(STUCK.format(folder=folder, compiler=shutil.which("c++")))
        compiler.chmod(0o755)
        process = child("first_result", builder, kept, PATH=f"{folder}:{os.environ['PATH']}")
        while not Path(folder, "started").exists() and process.poll() is None:
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        found = output_of(child("first_result", builder, kept), PATIENCE)
        return f"waits: not done after {PATIENCE:.0f} s" if found is None else f"builds, in {found} s"


def calls(seconds: float) -> dict[str, Any]:
    """µs per call on 8 elements, with the output given and with the output made."""
    x, out = torch.ones(8), torch.empty(8)
    cases: dict[str, Work] = {
        "torch.mul | out made": lambda: torch.mul(x, 3),
        "torch.empty_like": lambda: torch.empty_like(x),
    }
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, builder) in enumerate(BUILDERS.items()):
            place = Path(folder, str(number))
            place.mkdir()
            into, times = builder(place)
            cases[f"{name} | out given"] = lambda into=into: into(x, out)  # type: ignore[misc]
            cases[f"{name} | out made"] = lambda times=times: times(x)  # type: ignore[misc]
        with torch.no_grad():
            timings = measure(cases, seconds=seconds)
    return {name: asdict(timing) for name, timing in timings.items()}


def refusals(builder: str) -> dict[str, str]:
    """What each kind of tensor leads to, each in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        output_of(child("first_result", builder, folder))
        return {tensor: output_of(child("refusal", builder, folder, tensor), 120) or "hangs" for tensor in TENSORS}


SECTIONS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "seconds": lambda options: {name: build_and_load(name, options.rounds) for name in BUILDERS},
    "calls": lambda options: calls(options.seconds),
    "refusals": lambda _: {name: refusals(name) for name in BUILDERS},
    "after a killed build": lambda _: {
        name: after_a_killed_build(name)
        for name in BUILDERS
        if "pybind" not in name  # as the other, and slow to build
    },
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """The sections asked for; the others as they were recorded before."""
    before = json.loads(options.out.read_text()) if options.only and options.out and options.out.exists() else {}
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    measured = {name: section(options) for name, section in SECTIONS.items() if name in (options.only or SECTIONS)}
    return {**before, "date": date, "machine": describe_machine(), **measured}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--only", action="append", choices=list(SECTIONS), help="keeps the rest of FILE; default: all")
    parser.add_argument("--rounds", type=int, default=2, help="of builds and loads")
    parser.add_argument("--seconds", type=float, default=5.0, help="for the calls")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        work, builder, folder, *rest = options.child
        {"first_result": first_result, "refusal": refusal}[work](builder, Path(folder), *rest)
        return
    found = run(options)
    text = json.dumps(found, indent=1, ensure_ascii=False)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
