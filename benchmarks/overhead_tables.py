"""The tables of docs/explanation/what-a-call-costs.md, from what was recorded: python benchmarks/overhead_tables.py.

`python benchmarks/overhead.py --record` measures the installed torch, records it, and writes the tables.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # the module beside this file

import overhead_plot
from recorded_runs import put_between, read_recorded, table, version_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "overhead-cpu"
MODEL = RESULTS.parent / "language-model-cpu.json"
DOCUMENT = ROOT / "docs" / "explanation" / "what-a-call-costs.md"
MODES = ("no grad", "forward", "forward + backward")
PEERS = {
    "torch.mul": "`torch.mul` itself",
    "by name": "op with a backward bound by name",
    "by name, C++ kernel": "the same with a kernel in C++",
    "by name, C++ kernel and rule": "the same with kernel and rule in C++",
    "drop-in": "op with `register_autograd`",
    "overload": "its overload, as compiled graphs call it",
    "torch.library": "`torch.library.custom_op`",
    "torch.library overload": "its overload",
    "triton_op": "`torch.library.triton_op`",
    "define and impl": "`define` and `impl`",
    "define and impl, Function outside": "the same in an `autograd.Function`",
    "raw Library": "raw `Library` op with an `autograd.Function`",
    "Function, forward(ctx)": "`autograd.Function`, `forward(ctx, ...)`",
    "Function, setup_context": "`autograd.Function`, `setup_context`",
    "C++": "C++ op with C++ autograd, through `torch.ops`",
}
KINDS = {
    "hidden and integer": "a hidden output that is saved, an integer input",
    "two outputs": "two outputs",
    "optional and list": "an optional tensor, a list of two tensors",
    "writing": "an op that writes to an input and returns nothing",
    "two kinds in turns": "two calls in turns, of vectors and of matrices",
}
GRAPHS = {
    "compiled": "op with a backward bound by name",
    "torch.library compiled": "`torch.library.custom_op`",
    "C++ compiled": "C++ op with C++ autograd",
}
BACKENDS = ("aot_eager", "inductor")
FIRST = {"no grad": "call", "forward": "call with gradients", "backward": "backward"}
NEW = {
    ("1 op", "no grad"): "import, declare and call one op",
    ("1 op", "forward + backward"): "the same, forward and backward",
    ("1,000 ops", "no grad"): "import, declare and call 1,000 ops",
    ("1,000 ops", "forward + backward"): "the same, forward and backward",
}
LEVELS = {"validation full": "`full`", "validation cheap": "`cheap`", "validation off": "`off`"}


def torch_of(recorded: dict[str, Any]) -> str:
    """Return the torch of a recorded run, as in "2.13.0"."""
    return version_of(recorded["machine"]["torch"])


def calls(recorded: list[dict[str, Any]]) -> str:
    """Return the times of one call per peer, a table for each torch."""
    tables = []
    for one in recorded:
        rows = [[name, *_times(one, key)] for key, name in PEERS.items()]
        tables += [f"PyTorch {torch_of(one)}:", table(["µs per call", *MODES], rows)]
    machine = recorded[0]["machine"]
    where = f"{machine['cpu']}, threads: {machine['threads']}, Python {machine['python']}"
    tables.append(f"Measured on {recorded[0]['date']}: {where}, no GPU.")
    return "\n\n".join(tables)


def graphs(recorded: list[dict[str, Any]]) -> str:
    """Return the times of one of many calls in a compiled graph."""
    tables = []
    for one in recorded:
        rows = [
            [name, *(_times(one, f"{key}, {backend}")[mode] for backend in BACKENDS for mode in (0, 1))]
            for key, name in GRAPHS.items()
        ]
        heads = [f"{backend}, {mode}" for backend in BACKENDS for mode in MODES[:2]]
        tables.append(table([f"PyTorch {torch_of(one)}, µs per call in a graph", *heads], rows))
    return "\n\n".join(tables)


def first(recorded: list[dict[str, Any]]) -> str:
    """Return the times of first calls in a process that has called others, and of all in a new process."""
    tables = []
    for one in recorded:
        timings = one["timings"]

        def shown(name: str, unit: int, its: dict[str, Any] = timings) -> str:
            return f"{its[name]['minimum'] / unit:,.0f} / {its[f'torch.library {name}']['minimum'] / unit:,.0f}"

        head = f"PyTorch {torch_of(one)}, ours / torch.library"
        declared = shown("declare | ", 1)
        rows = [["declare", declared]] + [
            [f"first {mode}", shown(f"first call | {key}", 1)] for key, mode in FIRST.items()
        ]
        tables.append(table([f"{head}, µs, in a process with other ops", "time"], rows))
        rows = [[name, shown(f"{count} | {mode}", 1000)] for (count, mode), name in NEW.items()]
        tables.append(table([f"{head}, ms, in a new process", "time"], rows))
    return "\n\n".join(tables)


def imports(recorded: list[dict[str, Any]]) -> str:
    """Return how long the import takes."""
    found = [f"{one['import']['milliseconds']:.0f} ms with PyTorch {torch_of(one)}" for one in recorded]
    return f"Importing `custom_op` after `torch` takes {' and '.join(found)}, without Python's garbage collector."


def steps(recorded: list[dict[str, Any]]) -> str:
    """Return the times of a training step of a small language model, from benchmarks/measure_language_model.py."""
    found = json.loads(MODEL.read_text(encoding="utf-8"))
    rows = []
    for row in found["rows"]:
        own, plain = (row["us"][way]["minimum"] / 1000 for way in ("gallery ops", "plain PyTorch"))
        rows.append([row["size"], f"{own:.2f}", f"{plain:.2f}", f"{row['ratio']:.3f}", str(row["limit"])])
    heads = [f"PyTorch {torch_of(found)}, ms per step", "gallery ops", "plain PyTorch", "ratio", "at most"]
    return table(heads, rows)


def levels(recorded: list[dict[str, Any]]) -> str:
    """Return the times of one call per level of validation."""
    newest = recorded[0]
    rows = [[name, *_times(newest, key)] for key, name in LEVELS.items()]
    return table([f"PyTorch {torch_of(newest)}, µs per call", *MODES], rows)


def kinds(recorded: list[dict[str, Any]]) -> str:
    """Return the times of ops of other kinds, with kernels in Python and in C++, and those of peers."""
    newest, rows = recorded[0], []
    for key, name in KINDS.items():
        times = [_times(newest, case) for case in (key, f"{key}, C++ kernel", f"C++ {key}", f"torch.library {key}")]
        alone = _times(newest, f"kernel alone {key}")[0]
        rows.append([name, *(" / ".join(row) for row in zip(*times, strict=True)), alone])
    cases = "ours / ours with a C++ kernel / C++ op / torch.library"
    return table([f"PyTorch {torch_of(newest)}, µs per call, {cases}", *MODES, "its kernel alone"], rows)


def roads(recorded: list[dict[str, Any]]) -> str:
    """Return the ratios of calls that are not plain, as `ratios` does."""
    return _ratios(recorded, is_road=True)


def ratios(recorded: list[dict[str, Any]]) -> str:
    """Return every other target and the ratio that was measured for it, with a column per torch."""
    return _ratios(recorded, is_road=False)


def _ratios(recorded: list[dict[str, Any]], *, is_road: bool) -> str:
    heads = ["ratio", "mode", "at most", *(f"PyTorch {torch_of(one)}" for one in recorded)]
    rows = []
    for row in [one for one in recorded[0]["ratios"] if is_road == (": " in one["ours"])]:
        found = [_ratio(one, row) for one in recorded]
        rows.append([f"{row['ours']} / {row['peer']}", row["mode"] or "-", str(row["target"]), *found])
    return table(heads, rows)


TABLES = {
    "calls": calls,
    "ratios": ratios,
    "roads": roads,
    "levels": levels,
    "kinds": kinds,
    "graphs": graphs,
    "first": first,
    "imports": imports,
    "steps": steps,
}


def page() -> str:
    """Return the page with its tables written from what was recorded."""
    text, recorded = DOCUMENT.read_text(encoding="utf-8"), read_recorded(RESULTS)
    for name, make in TABLES.items():
        begin, end = f"<!-- {name}: benchmarks/overhead_tables.py -->", f"<!-- end of {name} -->"
        text = put_between(text, begin, end, make(recorded))
    return text


def write_page() -> None:
    """Write the tables into the page, and the plot beside it."""
    DOCUMENT.write_text(page(), encoding="utf-8")
    recorded = read_recorded(RESULTS)
    overhead_plot.draw(recorded, PEERS, MODES, [torch_of(one) for one in recorded])


def _times(recorded: dict[str, Any], name: str) -> list[str]:
    found = (recorded["timings"].get(f"{name} | {mode}") for mode in MODES)
    return ["-" if timing is None else f"{timing['minimum']:.2f}" for timing in found]


def _ratio(recorded: dict[str, Any], target: dict[str, Any]) -> str:
    keys = ("ours", "peer", "mode")
    for row in recorded["ratios"]:
        if all(row[key] == target[key] for key in keys):
            return f"{row['ratio']:.3f}{'' if row['holds'] else ', missed'}"
    return "-"


if __name__ == "__main__":
    write_page()
