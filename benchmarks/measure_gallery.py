"""How fast the ops of the gallery are beside what would be used instead: python benchmarks/measure_gallery.py NAME.

Each case of benchmarks/gallery_cases/NAME.py is measured for the op, its reference in eager mode ("eager") and under
torch.compile ("compiled"), and each peer; what disagrees with the reference is not timed, and makes the exit code 1.
A peer that is not installed is skipped.

forward     one call without gradients, µs.
backward    torch.autograd.grad with fixed cotangents over one graph that is kept, µs: no forward is in it.
memory      what a second forward and backward takes at its peak beyond its arguments, MiB, in a process of its own.

All callables of a case take turns in one run of each mode; ratios are of the shortest times.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config  # for one setting, in main

sys.path.insert(0, str(Path(__file__).parent))  # cases.py and agreement.py stand beside this file
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))  # cases import the gallery
sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "gallery"))  # whose files import each other

from cases import Case

from agreement import backward_of, disagreement, fresh_arguments, leaves
from custom_autograd.benchmarking.interleaved import Work, measure
from custom_autograd.benchmarking.machine import describe_machine
from custom_autograd.benchmarking.memory import peak_memory
from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.native.loading import library

BENCHMARKS = Path(__file__).parent
COPIED = 2**28  # bytes: far more than caches hold


@dataclass
class Found:
    """What a file of cases has come to."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    targets: list[dict[str, Any]] = field(default_factory=list)
    missing: list[dict[str, Any]] = field(default_factory=list)
    disagrees: bool = False

    def add(self, case: str, mode: str, figures: dict[str, tuple[float, float]], unit: str) -> None:
        """Adds a row for each callable: the smallest figure and the median."""
        for name, (minimum, median) in figures.items():
            ratio = figures["op"][0] / minimum if "op" in figures and minimum else None
            row = {"case": case, "callable": name, "mode": mode, "minimum": minimum, "median": median, "unit": unit}
            self.rows.append({**row, "op / callable": ratio and round(ratio, 3)})

    def skip(self, case: str, name: str, mode: str, reason: str) -> None:
        """Notes what is not measured, and why."""
        self.missing.append({"case": case, "callable": name, "mode": mode, "reason": reason})


def load_cases(path: Path, *arguments: Any) -> list[Case]:
    """The cases of one file, whose function `cases` is called with the arguments."""
    spec = importlib.util.spec_from_file_location(f"cases_of_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # Dynamo imports it by that name
    spec.loader.exec_module(module)
    return list(module.cases(*arguments))


def names_of(case: Case) -> list[str]:
    """The op and what would be used instead."""
    return ["op", "eager", "compiled", *case.peers]


def callable_of(case: Case, name: str) -> Callable[..., Any]:
    """One of them."""
    if name == "compiled":
        compiled: Callable[..., Any] = torch.compile(case.reference)
        return compiled
    return {"op": case.op, "eager": case.reference, **case.peers}[name]


def first_line(error: Exception) -> str:
    """What an error says first."""
    return (str(error).strip().splitlines() or [""])[0]


def agreeing(case: Case, options: argparse.Namespace, found: Found) -> dict[str, Callable[..., Any]]:
    """The callables that run and compute what the reference does."""
    agreed = {}
    for name in names_of(case):
        if name in options.without:
            found.skip(case.name, name, "all", "left out with --without")
            continue
        work = callable_of(case, name)
        try:
            problem = disagreement(case, work, options.device)
        except (ImportError, KernelUnavailable) as error:
            if name not in case.peers:
                raise
            found.skip(case.name, name, "all", f"not installed: {first_line(error)}")
            continue
        except Exception as error:  # noqa: BLE001 - a peer that does not run is no reason to measure nothing
            problem = f"{type(error).__name__}: {first_line(error)}"
        if problem is None:
            agreed[name] = work
        else:
            found.disagrees = True
            found.skip(case.name, name, "all", problem)
    return agreed


def measure_forward(works: dict[str, Callable[..., Any]], case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """The timings of calls without gradients; each callable has arguments of its own."""

    def bound(work: Callable[..., Any]) -> Work:
        arguments = fresh_arguments(case, options.device)
        return lambda: work(*arguments)

    with torch.no_grad():
        return measure(
            {name: bound(work) for name, work in works.items()}, seconds=options.seconds, finish=finish(options.device)
        )


def measure_backward(works: dict[str, Callable[..., Any]], case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """The timings of backward passes; empty where nothing is differentiated."""
    passes = {name: backward_of(case, work, options.device) for name, work in works.items()}
    present = {name: backward for name, backward in passes.items() if backward is not None}
    return measure(present, seconds=options.seconds, finish=finish(options.device)) if present else {}


def finish(device: str) -> Work:
    """What waits for a device."""
    return torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None


def measure_memory(path: Path, number: int, name: str, options: argparse.Namespace) -> tuple[float, float] | str:
    """MiB at the peak of forward and backward, in a new process: the smaller of two, and the larger; or why not."""
    command = [sys.executable, __file__, str(path), "--memory", str(number), name]
    command += ["--device", options.device, "--threads", str(options.threads)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        return f"the process ended with status {ended.returncode}: {ended.stderr.strip().splitlines()[-1:]}"
    smaller, larger = sorted(float(peak) / 2**20 for peak in ended.stdout.split()[-2:])
    return round(smaller, 2), round(larger, 2)


def print_memory(path: Path, number: int, name: str, device: str) -> None:
    """In a child: prints the bytes at the peak of the second forward and backward, and of the third."""
    case = load_cases(path)[number]
    work = callable_of(case, name)

    def forward_and_backward() -> Any:
        outputs = work(*arguments)
        if any(tensor.requires_grad for tensor in leaves(arguments)):
            differentiable = [tensor for tensor in leaves(outputs) if tensor.requires_grad]
            wanted = [tensor for tensor in leaves(arguments) if tensor.requires_grad]
            return outputs, torch.autograd.grad(differentiable, wanted, cotangents, allow_unused=True)
        return outputs

    arguments = fresh_arguments(case, device)
    cotangents = [torch.randn_like(tensor) for tensor in leaves(work(*arguments)) if tensor.requires_grad]
    peaks = []
    for _ in range(3):
        arguments = fresh_arguments(case, device)  # an op may write to them
        peaks.append(peak_memory(forward_and_backward, device))
    print(*peaks[1:])


def measure_case(path: Path, number: int, case: Case, options: argparse.Namespace, found: Found) -> None:
    """All modes of one case."""
    if "compiled" not in options.without:
        torch.compiler.reset()
    works = agreeing(case, options, found)
    if "op" not in works:
        return
    for mode, measured in (("forward", measure_forward), ("backward", measure_backward)):
        timings = measured(works, case, options)
        found.add(case.name, mode, {name: (t.minimum, t.median) for name, t in timings.items()}, "µs")
    peaks = {name: measure_memory(path, number, name, options) for name in works}
    for name, reason in peaks.items():
        if isinstance(reason, str):
            found.skip(case.name, name, "memory", reason)
    found.add(case.name, "memory", {name: peak for name, peak in peaks.items() if isinstance(peak, tuple)}, "MiB")
    judge(case, found)
    if case.bytes_moved is not None:
        add_bandwidth(case, options, found)


def judge(case: Case, found: Found) -> None:
    """Compares ratios with the targets of a case."""
    ratios = {(row["callable"], row["mode"]): row["op / callable"] for row in found.rows if row["case"] == case.name}
    for (peer, mode), limit in case.target.items():
        ratio = ratios.get((peer, mode))
        if ratio is None:
            found.skip(case.name, peer, mode, "there is a target, and no figure")
            continue
        shown_limit = float(f"{limit:.3g}")  # what is shown is what is compared
        target = {"case": case.name, "peer": peer, "mode": mode, "limit": shown_limit, "ratio": ratio}
        found.targets.append({**target, "holds": ratio <= shown_limit})


def add_bandwidth(case: Case, options: argparse.Namespace, found: Found) -> None:
    """Adds the share of the bandwidth of a copy that the op reaches, measured in turns with the copy."""
    source = torch.empty(COPIED, dtype=torch.uint8, device=options.device)
    target = torch.empty_like(source)
    arguments = fresh_arguments(case, options.device)
    works: dict[str, Work] = {"copy": lambda: target.copy_(source), "op": lambda: case.op(*arguments)}
    with torch.no_grad():
        timings = measure(works, seconds=options.seconds, finish=finish(options.device))
    copied = 2 * COPIED / timings["copy"].minimum / 1e3
    reached = (case.bytes_moved or 0) / timings["op"].minimum / 1e3
    row = {"case": case.name, "callable": "op", "mode": "bandwidth", "minimum": reached, "median": None, "unit": "GB/s"}
    found.rows.append({**row, "copy": copied, "op / copy": round(reached / copied, 3)})


def shown(name: str, found: Found) -> Iterator[str]:
    """The table of one file."""
    yield f"{name}:"
    for row in found.rows:
        ratio = row.get("op / callable", row.get("op / copy"))
        figure = f"{row['minimum']:12.2f} {row['unit']:5}"
        yield f"  {row['case']:44} {row['mode']:9} {row['callable']:14} {figure} op / it {ratio}"
    for row in found.targets:
        verdict = "holds" if row["holds"] else "MISSED"
        yield f"  {row['case']:44} {row['mode']:9} op / {row['peer']:14} {row['ratio']} <= {row['limit']}: {verdict}"
    for row in found.missing:
        yield f"  not measured: {row['case']}, {row['callable']}, {row['mode']}: {row['reason']}"


def measure_file(path: Path, options: argparse.Namespace) -> bool:
    """Measures the cases of one file, prints and writes what is found; whether all agree."""
    found = Found()
    for number, case in enumerate(load_cases(path)):
        measure_case(path, number, case, options, found)
    if torch.device(options.device).type == "cpu" and not torch.cuda.is_available():
        found.skip("all", "all", "cuda", "there is no GPU")
    print("\n".join(shown(path.stem, found)), flush=True)
    written = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": describe_machine(),
        "rows": found.rows,
        "targets": found.targets,
        "not measured": found.missing,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(written, indent=1, ensure_ascii=False) + "\n"
    (options.out / f"{path.stem}-{torch.device(options.device).type}.json").write_text(text, encoding="utf-8")
    return not found.disagrees


def files_of(names: Sequence[str]) -> list[Path]:
    """The files that are named, by path or as one of benchmarks/gallery_cases; without names, all of these."""
    folder = BENCHMARKS / "gallery_cases"
    return [Path(name) if name.endswith(".py") else folder / f"{name}.py" for name in names] or sorted(
        folder.glob("*.py")
    )


def load_native_calls() -> None:
    """Load native calls, which else are loaded in the background: a graph that is kept is recorded by them, too."""
    with suppress(KernelUnavailable):  # calls run without them where nothing can build them
        if library.mode != "0":
            library.load()


def main() -> int:
    """The command line; 1 where something disagrees with its reference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of benchmarks/gallery_cases, or files; default: all")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=2, help="of torch, on a CPU")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each case and mode")
    parser.add_argument("--without", action="append", default=[], metavar="CALLABLE", help="such as compiled")
    parser.add_argument("--out", type=Path, default=BENCHMARKS / "results" / "gallery", help="where the JSON goes")
    parser.add_argument("--memory", nargs=2, metavar=("NUMBER", "CALLABLE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if torch.device(options.device).type == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: there is no GPU; nothing is measured")
    torch.set_num_threads(options.threads)
    load_native_calls()
    # torch.compile reuses what forward saved as memory for gradients; a graph that is kept needs it again.
    torch._functorch.config.donated_buffer = False
    paths = files_of(options.names)
    if absent := [str(path) for path in paths if not path.exists()]:
        parser.error(f"no such cases: {', '.join(absent)}")
    if options.memory:
        print_memory(paths[0], int(options.memory[0]), options.memory[1], options.device)
        return 0
    agree = [measure_file(path, options) for path in paths]
    return 0 if all(agree) else 1


if __name__ == "__main__":
    sys.exit(main())
