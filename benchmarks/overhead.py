"""What a call of an op costs besides its kernel, in every way to declare it: python benchmarks/overhead.py --out FILE.

Every group is one run in which all cases take turns; ratios are of the shortest times. Tensors have 8 elements.
`--record` writes benchmarks/results/overhead-cpu/ and the tables of docs/explanation/what-a-call-costs.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import operator
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))  # the modules beside this file

import first_calls
import overhead_tables
import roads
from groups import CALLS_PER_GRAPH, GROUPS, call_group, compiled_group
from kinds import IN_CPP, KINDS, kinds_group

from custom_autograd.benchmarking.interleaved import Timing, measure
from custom_autograd.benchmarking.machine import describe_machine
from custom_autograd.native.loading import library

NAMES = ["call", *GROUPS, "kinds", "compiled", "roads", "first calls", "new processes", "import"]
TARGETS = (  # ours, the peer, how their ratio has to compare, with what in which mode
    ("by name", "torch.library", "<=", {"no grad": 0.22, "forward": 0.32, "forward + backward": 0.62}),
    ("drop-in", "torch.library", "<=", {"no grad": 0.22, "forward": 0.37, "forward + backward": 0.67}),
    ("by name", "C++", "<=", {"no grad": 0.60, "forward": 0.65, "forward + backward": 1.00}),
    ("by name", "torch.mul", "<=", {"no grad": 1.35, "forward": 1.25, "forward + backward": 1.10}),
    ("by name", "Function, forward(ctx)", "<=", {"forward": 1.00, "forward + backward": 1.00}),
    ("by name, C++ kernel", "C++", "<=", {"no grad": 0.55, "forward": 0.60, "forward + backward": 1.00}),
    ("by name, C++ kernel and rule", "C++", "<=", {"no grad": 0.55, "forward": 0.60, "forward + backward": 1.00}),
    ("by name", "define and impl", "<=", {"no grad": 1.00}),
    ("by name", "define and impl, Function outside", "<=", {"forward": 1.00, "forward + backward": 1.00}),
    ("drop-in", "C++", "<=", {"no grad": 0.60, "forward": 0.65, "forward + backward": 1.00}),
    ("overload", "torch.library overload", "<=", {"no grad": 0.55, "forward": 0.70}),
    ("line of shapes", "no line of shapes", "<=", {"no grad": 1.03, "forward": 1.03, "forward + backward": 1.03}),
    ("compiled, inductor", "C++ compiled, inductor", "<=", {"no grad": 1.6, "forward": 1.6}),
    ("declare", "torch.library declare", "<=", {"": 1.0}),
    ("first call", "torch.library first call", "<=", {"no grad": 1.3, "forward": 1.3, "backward": 1.3}),
    ("1 op", "torch.library 1 op", "<=", {"no grad": 1.0, "forward + backward": 1.0}),
    ("1,000 ops", "torch.library 1,000 ops", "<=", {"no grad": 1.2, "forward + backward": 1.2}),
    ("14 inputs", "torch.library 14 inputs", "<=", {"no grad": 0.25, "forward": 0.35}),
    ("hidden and integer", "torch.library hidden and integer", "<=", {"forward + backward": 0.62}),
    ("optional and list", "torch.library optional and list", "<=", {"forward + backward": 0.62}),
    ("two kinds in turns", "torch.library two kinds in turns", "<=", {"forward + backward": 0.62}),
    *((name, f"C++ {name}", "<=", {"no grad": 0.60, "forward": 0.65, "forward + backward": 1.00}) for name in KINDS),
    *(
        (f"{name}{IN_CPP}", f"C++ {name}", "<=", {"no grad": 0.55, "forward": 0.60, "forward + backward": 1.00})
        for name in KINDS
    ),
    *roads.targets(),
)
COMPARISONS: dict[str, Callable[[float, float], bool]] = {"<": operator.lt, "<=": operator.le}


def ratios(timings: dict[str, Timing]) -> list[dict[str, Any]]:
    """Each target, beside what was measured."""
    rows = []
    for ours, theirs, comparison, targets in TARGETS:
        for mode, target in targets.items():
            own, other = timings.get(f"{ours} | {mode}"), timings.get(f"{theirs} | {mode}")
            if own is None or other is None:
                continue
            ratio = round(own.minimum / other.minimum, 3)  # what is shown is what is compared
            row = {"ours": ours, "peer": theirs, "mode": mode, "ratio": ratio}
            holds = COMPARISONS[comparison](ratio, target)
            rows.append({**row, "comparison": comparison, "target": target, "holds": holds})
    return rows


def per_op(timing: Timing) -> Timing:
    """The share of one op in the time of a graph."""
    return replace(timing, minimum=timing.minimum / CALLS_PER_GRAPH, median=timing.median / CALLS_PER_GRAPH)


def measure_group(group: str, missing: dict[str, str], seconds: float) -> dict[str, Timing]:
    """The timings of one group, in µs per call of an op."""
    if group == "call":
        return measure(call_group(missing), seconds=seconds)
    if group == "kinds":
        return measure(kinds_group(missing), seconds=seconds)
    if group == "compiled":
        graphs = measure(compiled_group(missing), seconds=seconds)
        return {name: per_op(timing) for name, timing in graphs.items()}
    if group == "roads":
        return roads.road_group(4 * seconds)
    if group == "first calls":
        return first_calls.first_calls(rounds=max(5, round(20 * seconds)))
    if group == "new processes":
        return first_calls.new_processes()
    return measure(GROUPS[group](), seconds=seconds)


IMPORT = """
import gc, time, torch
gc.disable()
start = time.process_time()
from custom_autograd import custom_op
print(time.process_time() - start)
"""


def import_time() -> dict[str, float]:
    """The shortest of ten imports in processes of their own, where torch is imported and the collector is off."""
    with first_calls.process_runner() as run:
        found = [run("-c", IMPORT) for _ in range(10)]
    return {"milliseconds": round(1000 * min(map(float, found)), 1)}


def run(groups: list[str], seconds: float, *, left_out: dict[str, str]) -> dict[str, Any]:
    """Measures the groups, except the peers left out for a reason, and describes the machine."""
    torch.set_num_threads(1)
    missing = dict(left_out)
    if "native calls" not in missing:
        library.load()
    timings: dict[str, Timing] = {}
    for group in [one for one in groups if one != "import"]:
        timings |= measure_group(group, missing, seconds)
    if torch.cuda.is_available() and "call" in groups:
        cuda = {f"cuda {name}": work for name, work in call_group(missing, "cuda").items()}
        timings |= measure(cuda, seconds=seconds, finish=torch.cuda.synchronize)
    else:
        missing["cuda"] = "there is no GPU, or the calls were not asked for"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": describe_machine(),
        "native calls": "native calls" not in missing,
        "timings": {name: asdict(timing) for name, timing in timings.items()},
        "ratios": ratios(timings),
        "import": import_time() if "import" in groups else {},
        "not measured": missing,
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--record", action="store_true", help="record all groups for the installed torch")
    parser.add_argument("--only", action="append", choices=NAMES, help="a group; default: all")
    parser.add_argument("--seconds", type=float, default=20.0, help="per group")
    parser.add_argument("--python", action="store_true", help="generated Python only: no native calls")
    parser.add_argument("--quick", action="store_true", help="only the calls, few rounds, and nothing that is built")
    options = parser.parse_args()
    if options.record and (options.only or options.quick):
        parser.error("--record measures everything: leave out --only and --quick")
    if options.record and options.python:
        parser.error("--record measures what users have: leave out --python")
    library.mode = "0" if options.python or options.quick else "require"
    left_out = {"native calls": "they were not asked for"} if library.mode == "0" else {}
    if options.quick:
        found = run(options.only or ["call"], 0.0, left_out={**left_out, "C++": "--quick builds nothing"})
    else:
        found = run(options.only or NAMES, options.seconds, left_out=left_out)
    for name, timing in found["timings"].items():
        print(f"{name:48} {timing['minimum']:9.2f} µs  {timing['median']:9.2f} µs")
    for row in found["ratios"]:
        target = f"{row['comparison']:>2} {row['target']}  {'holds' if row['holds'] else 'MISSED'}"
        print(f"{row['ours']:12} / {row['peer']:26} {row['mode']:20} {row['ratio']:.3f}  {target}")
    for name, milliseconds in found["import"].items():
        print(f"import: {milliseconds} {name}")
    for name, reason in found["not measured"].items():
        print(f"not measured: {name}: {reason}")
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    if options.record:
        (overhead_tables.RESULTS / f"{overhead_tables.torch_of(found)}.json").write_text(text, encoding="utf-8")
        overhead_tables.write_page()


if __name__ == "__main__":
    main()
