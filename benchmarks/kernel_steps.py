"""The steps of docs/how-to/write-a-fast-kernel.md, measured in turns: python benchmarks/kernel_steps.py --record.

The C++ blocks of the page are the source. `--record` writes benchmarks/results/kernel-steps.json and the page's table.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))  # the module beside this file

from recorded_runs import put_between, table

from custom_autograd.benchmarking.interleaved import Work, measure
from custom_autograd.benchmarking.machine import describe_machine
from custom_autograd.kernels import cpp_kernel

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "kernel-steps.json"
DOCUMENT = ROOT / "docs" / "how-to" / "write-a-fast-kernel.md"
BEGIN, END = "<!-- steps: benchmarks/kernel_steps.py -->", "<!-- end of steps -->"
SHAPE, THREADS = (256, 4096), 2
STEPS = [
    ("1. a loop over elements", "softmax_by_element", "float32"),
    ("2. pointers", "softmax_by_pointer", "float32"),
    ("3. threads", "softmax_in_threads", "float32"),
    ("4. vector instructions", "softmax_in_vectors", "float32"),
    ("5. any dtype", "softmax", "float32"),
    ("`torch.softmax`", "torch", "float32"),
    ("5. any dtype", "softmax", "bfloat16"),
    ("a sum in bfloat16, one thread", "softmax_with_narrow_sums", "bfloat16"),
    ("`torch.softmax`", "torch", "bfloat16"),
]
"""What the page calls each step, the function, and the dtype of its argument."""


def source_of(page: str) -> str:
    """Return the C++ blocks of a page, as one source."""
    return "\n".join(re.findall(r"^```cpp\n(.*?)^```$", page, re.M | re.S))


def error_of(found: Tensor, x: Tensor) -> float:
    """Return the largest relative difference from a softmax in float64."""
    exact = x.double().softmax(-1)
    return float(((found.double() - exact) / exact).abs().max())


def run(seconds: float) -> dict[str, Any]:
    """Return the times and errors of all steps."""
    torch.set_num_threads(THREADS)
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "softmax.cpp")
        source.write_text(source_of(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
        cases: dict[str, Work] = {}
        errors = {}
        for _, function, dtype in STEPS:
            kernel = torch.nn.Softmax(-1) if function == "torch" else cpp_kernel(source, function)
            given = x.to(getattr(torch, dtype))
            cases[f"{function} | {dtype}"] = lambda kernel=kernel, given=given: kernel(given)  # type: ignore[misc]
            errors[f"{function} | {dtype}"] = error_of(kernel(given), given)
        timings = measure(cases, seconds=seconds)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": describe_machine(),
        "shape": SHAPE,
        "rows": {name: {"microseconds": timings[name].minimum, "error": errors[name]} for name in cases},
    }


def page(recorded: dict[str, Any]) -> str:
    """Return the page with the table of a recorded run."""
    rows, machine = recorded["rows"], recorded["machine"]
    lines, before = [], None
    for step, function, dtype in STEPS:
        row, peer = rows[f"{function} | {dtype}"], rows[f"torch | {dtype}"]
        ratio = f"{row['microseconds'] / peer['microseconds']:.2f}"
        gain = f"{before / row['microseconds']:.1f}" if before and dtype == "float32" and function != "torch" else ""
        lines.append([step, dtype, ratio, gain, f"{row['error']:.1e}"])
        before = row["microseconds"]
    heads = ["step", "dtype", "time / `torch.softmax`", "times faster than the step before", "error"]
    shape = " x ".join(map(str, recorded["shape"]))
    told = f"{shape} elements, {machine['threads']} threads on {machine['cpu']}, PyTorch {machine['torch']}:"
    return put_between(DOCUMENT.read_text(encoding="utf-8"), BEGIN, END, f"\n{told}\n\n{table(heads, lines)}\n")


def main() -> None:
    """Measure; print the result or record it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="writes the record and the page's table")
    parser.add_argument("--seconds", type=float, default=20.0, help="for all steps together")
    options = parser.parse_args()
    found = run(options.seconds)
    text = json.dumps(found, indent=1) + "\n"
    print(text)
    if options.record:
        RESULTS.write_text(text, encoding="utf-8")
        DOCUMENT.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
