"""Trains a small language model with plain PyTorch and with the gallery's ops, each in eager mode and compiled.

The four runs share seed, weights and data, so their loss curves have to agree; `agreement.py` says how closely.
Exit code 0: they agree; 1: they do not.

    python examples/language_model/train.py --output build/demo
    python examples/language_model/train.py --quick
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from torch import Tensor

import data
from agreement import Finding, compare
from ops import Ops, gallery_ops, plain_ops
from results import summary, write_json, write_plot
from training import Run, Size, sample, train

STEPS = 500
QUICK_STEPS = 30
SEED = 0
GALLERY = "gallery ops"
PROMPT = "The statement"


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("build/demo"), help="folder for the results")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"optimizer steps of each run ({STEPS})")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps of a smaller model, for tests")
    parser.add_argument("--seed", type=int, default=SEED, help="of weights and data")
    return parser.parse_args(arguments)


def show_progress(batches: Iterable[Tensor], name: str) -> Iterator[Tensor]:
    """The batches, while a bar grows on a terminal; elsewhere, one line for each run."""
    try:
        from rich.progress import track
    except ImportError:
        track = None
    if track is not None and sys.stdout.isatty():
        yield from track(batches, description=f"{name:<26}")
        return
    began = time.perf_counter()
    print(f"{name:<26} ...", flush=True)
    yield from batches
    print(f"{name:<26} {time.perf_counter() - began:.1f} s", flush=True)


def train_all(size: Size, *, steps: int, seed: int) -> list[Run]:
    """The reference first, then what is compared with it."""
    windows = data.batches(data.text(), steps=steps, batch=size.batch, context=size.context, seed=seed)

    def run(name: str, ops: Ops, *, compiled: bool = False) -> Run:
        return train(name, ops, windows, size, seed=seed, compiled=compiled, progress=show_progress)

    return [
        run("plain PyTorch", plain_ops()),
        run("plain PyTorch, compiled", plain_ops(), compiled=True),
        run(GALLERY, gallery_ops()),
        run(f"{GALLERY}, compiled", gallery_ops(), compiled=True),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Trains, compares, writes."""
    options = parse_arguments(arguments)
    size = Size(features=32, heads=2, layers=1, context=32, batch=4) if options.quick else Size()
    runs = train_all(size, steps=QUICK_STEPS if options.quick else options.steps, seed=options.seed)
    findings: list[Finding] = [finding for run in runs[1:] for finding in compare(runs[0], run)]

    options.output.mkdir(parents=True, exist_ok=True)
    write_json(options.output / "language_model.json", runs, findings)
    text = summary(runs, findings)
    (options.output / "language_model.md").write_text(text, encoding="utf-8")
    print(f"\n{text}")
    if not write_plot(options.output / "language_model.png", runs):
        print("no plot: matplotlib is not installed")
    print(f"written to {options.output}\n")
    model = next(run.model for run in runs if run.name == GALLERY)
    print(f"The model with the gallery's ops writes:\n{sample(model, PROMPT, length=200, seed=options.seed)}")
    return 0 if all(finding.holds for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
