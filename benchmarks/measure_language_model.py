"""How long a training step of a small language model takes with gallery ops and with plain PyTorch, in turns.

    python benchmarks/measure_language_model.py

A step is a forward, a backward and an update of AdamW, in eager mode. With two layers it calls ten ops: five
rms_norms, four ropes and a cross entropy. Both models start from the same weights and see the same batch, and their
losses after the measured steps have to agree.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "language_model"))

from custom_autograd.benchmarking.interleaved import measure
from custom_autograd.benchmarking.machine import describe_machine
from model import LanguageModel
from ops import Ops, gallery_ops, plain_ops
from training import LEARNING_RATE, Size

RESULTS = Path(__file__).parent / "results"
SIZES = {
    "width 96, 8 x 128 tokens": Size(layers=2),
    "width 32, 4 x 32 tokens": Size(features=32, heads=2, layers=2, context=32, batch=4),
}
LIMIT = 0.95
WAYS: dict[str, Callable[[], Ops]] = {"plain PyTorch": plain_ops, "gallery ops": gallery_ops}


def make_step(ops: Ops, size: Size) -> Callable[[], float]:
    """A function that takes one step and returns the loss before it."""
    torch.manual_seed(0)
    shape = {name: value for name, value in asdict(size).items() if name != "batch"}
    model = LanguageModel(**shape, ops=ops)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    windows = torch.randint(size.vocabulary, (size.batch, size.context + 1))

    def step() -> float:
        optimizer.zero_grad()
        loss = model.loss(windows)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def measure_size(name: str, size: Size, seconds: float) -> dict[str, Any]:
    """The times of a step by way, their ratio, and the difference of the losses after ten steps."""
    first = {way: make_step(ops(), size) for way, ops in WAYS.items()}
    losses = {way: [step() for _ in range(10)][-1] for way, step in first.items()}
    difference = abs(losses["gallery ops"] - losses["plain PyTorch"])
    if difference > 1e-3:
        raise SystemExit(f"{name}: the losses after ten steps differ by {difference}")
    timings = measure({way: make_step(ops(), size) for way, ops in WAYS.items()}, seconds=seconds)
    times = {way: {"minimum": timing.minimum, "median": timing.median} for way, timing in timings.items()}
    ratio = round(timings["gallery ops"].minimum / timings["plain PyTorch"].minimum, 3)
    return {"size": name, "us": times, "ratio": ratio, "limit": LIMIT, "loss difference": difference}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each size")
    parser.add_argument("--out", type=Path, default=RESULTS / "language-model-cpu.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [measure_size(name, size, options.seconds) for name, size in SIZES.items()]
    for row in rows:
        print(f"{row['size']}: gallery ops / plain PyTorch {row['ratio']}, at most {LIMIT}")
    found = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": describe_machine(),
        "rows": rows,
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
