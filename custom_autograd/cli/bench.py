"""Measures calls of ops on their samples, compared with their references, for `custom-autograd bench`."""

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch

    from custom_autograd.benchmarking.interleaved import Work
    from custom_autograd.benchmarking.memory import Peak
    from custom_autograd.schema.samples import Sample
    from custom_autograd.verification.harness.runner import Case


OF_PEAK = "of peak"

Row = dict[str, Any]  # Any: names, numbers, and None if there is nothing to compare with
Peaks: TypeAlias = "dict[torch.dtype, Peak]"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--compare", metavar="CALLABLE", help="module:attribute or file.py:attribute, called likewise")
    parser.add_argument("--device", metavar="DEVICE", default="cpu", help="where samples live (default: cpu)")
    parser.add_argument("--dtype", metavar="DTYPE", help="the dtype of samples, such as float32")
    parser.add_argument("--seed", type=int, default=0, help="where random numbers begin (default: 0)")
    parser.add_argument("--seconds", type=float, default=1.0, help="wall time per sample, s (default: 1)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    parser.add_argument(
        "--backward", action=argparse.BooleanOptionalAction, default=True, help="measure with gradients too (default)"
    )
    parser.add_argument("--json", "--out", metavar="FILE", type=Path, help="write all figures and the machine as JSON")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw them; needs matplotlib")


def run(arguments: argparse.Namespace) -> int:
    """Measure every target, and print a table; return 0, or 1 if a call raises.

    Raises:
        CheckError: a target, the callable, a device or a file format is unknown, a number makes no sense, no op has
            samples, or matplotlib is missing.
    """
    from custom_autograd.cli.options import (  # imports torch
        cases_of,
        require_writable,
        results_without_samples,
        select_ops,
        write_document,
    )
    from custom_autograd.cli.terminal import print_table  # imports torch

    compared = _compared(arguments.compare)
    _check_numbers(arguments)
    _check_plot(arguments.plot)
    require_writable(arguments.json, arguments.plot)
    rows: list[Row] = []
    peaks: Peaks = {}
    ops = select_ops(arguments.targets, done="measured")
    cases, without = cases_of(ops, arguments), results_without_samples(ops)
    left_out: list[Row] = [{"op": result.op, "reason": result.message, "is finding": False} for result in without]
    with _threads(arguments.threads):
        for case in cases:
            _measure(case, compared, arguments, peaks, rows, left_out)
        document = _document(rows, left_out, peaks)
    if rows:
        heads = [head for head in HEADS if head != OF_PEAK or peaks]
        lines = [[_shown(row, head) for head in heads] for row in rows]
        print_table([[HEADS[head] for head in heads], *lines], sys.stdout)
    for peak in peaks.values():
        print(f"peak: {peak.text}")
    for row in left_out:
        print(_left_out_line(row))
    if arguments.plot is not None and rows:
        _draw(rows, arguments.plot)
    if arguments.json is not None:
        write_document(arguments.json, document)
    return 1 if any(row["is finding"] for row in left_out) else 0


def _compared(text: str | None) -> dict[str, Any]:
    """Return the callable to compare with by its name."""
    if text is None:
        return {}
    from custom_autograd.core.errors import CheckError  # imports torch
    from custom_autograd.verification.harness.op_files import load, split  # imports torch

    value = load(text)[0].value if split(text)[1] else None
    if not callable(value):
        raise CheckError(f"{text}: --compare takes a callable: module:attribute or file.py:attribute")
    name = text.rpartition(":")[2]
    return {text if name in ("op", "reference") else name: value}


def _check_numbers(arguments: argparse.Namespace) -> None:
    from custom_autograd.core.errors import CheckError  # imports torch

    if not (0 <= arguments.seconds < math.inf):
        raise CheckError(f"--seconds takes a finite number, 0 or more; {arguments.seconds} was given")
    if arguments.threads < 1:
        raise CheckError(f"--threads takes 1 or more; {arguments.threads} was given")


def _check_plot(path: Path | None) -> None:
    """Raise if the plot cannot be drawn, before anything is measured."""
    if path is None:
        return
    import importlib.util

    from custom_autograd.core.errors import CheckError  # imports torch

    if importlib.util.find_spec("matplotlib") is None:
        raise CheckError("--plot needs matplotlib: pip install custom-autograd[plot]")
    if path.suffix.removeprefix(".").lower() not in _formats():
        raise CheckError(f"{path}: --plot writes no such format; .png, .svg and .pdf are some")


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    """Set the number of threads of torch, and restore it afterwards."""
    import torch  # heavy

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _measure(
    case: "Case",
    compared: dict[str, Any],
    arguments: argparse.Namespace,
    peaks: "Peaks",
    rows: list[Row],
    left_out: list[Row],
) -> None:
    """Append the figures of each sample, of all callables in all modes in one run."""
    from custom_autograd.benchmarking.interleaved import measure  # imports torch
    from custom_autograd.benchmarking.machine import waiting_for  # imports torch
    from custom_autograd.cli.benchmarked_calls import MODES, calls_of, kernel_of  # imports torch

    modes = MODES if arguments.backward else MODES[:1]
    finish = waiting_for(arguments.device)
    for sample in (row for row in case.samples if row.error is None):
        calls = calls_of(case.target, sample, compared, modes=modes)
        kernel = kernel_of(case.target, sample)
        works = {f"{call.name}|{call.mode}": call.work for call in calls if call.work is not None}
        timings = measure(works, seconds=arguments.seconds, finish=finish) if works else {}
        for call in calls:
            row = {"op": case.target.name, "sample": str(sample), "callable": call.name, "mode": call.mode}
            timing, own = timings.get(f"{call.name}|{call.mode}"), timings.get(f"op|{call.mode}")
            if timing is None or call.work is None:
                left_out.append({**row, "reason": call.reason, "is finding": call.is_finding})
                continue
            figures = {"minimum": round(timing.minimum, 3), "median": round(timing.median, 3)}
            flops = _flops(call.work)
            reached = _of_peak(flops, timing.minimum, sample, peaks, arguments.device, finish) if flops else None
            ratio = None if own is None else round(own.minimum / timing.minimum, 3)
            rows.append({**row, **figures, "op / callable": ratio, "kernel": kernel if call.name == "op" else None})
            rows[-1] |= {"FLOPs": flops, OF_PEAK: reached}


def _flops(work: "Work") -> int:
    """Return the number of floating-point operations of a call according to torch's counter."""
    from torch.utils.flop_counter import FlopCounterMode  # heavy

    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def _of_peak(flops: int, microseconds: float, sample: "Sample", peaks: "Peaks", device: str, finish: "Work") -> float:
    """Return the share of the machine's peak in the dtype of a sample; the peak is measured once."""
    import torch  # heavy

    from custom_autograd.benchmarking.memory import measure_peak  # imports torch

    dtypes = (tensor.dtype for tensor in sample.tensors() if tensor.is_floating_point() or tensor.is_complex())
    dtype = next(dtypes, torch.float32)
    if dtype not in peaks:
        peaks[dtype] = measure_peak(device, dtype, finish=finish)
    return round(flops / microseconds * 1e6 / peaks[dtype].flops_per_second, 4)


def _document(rows: list[Row], left_out: list[Row], peaks: "Peaks") -> str:
    from custom_autograd.benchmarking.machine import describe_machine  # imports torch

    texts = [peak.text for peak in peaks.values()]
    document = {"machine": describe_machine(), "peaks": texts, "rows": rows, "not measured": left_out}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _shown(row: Row, head: str) -> str:
    value = row[head]
    if value is None:
        return "-"
    return f"{value:.1%}" if head == OF_PEAK else str(value)


def _left_out_line(row: Row) -> str:
    labels = [row[head] for head in ("op", "sample", "callable", "mode") if head in row]
    return f"not measured: {', '.join(labels)}: {row['reason']}"


HEADS = {
    "op": "op",
    "sample": "sample",
    "callable": "callable",
    "mode": "mode",
    "minimum": "minimum, µs",
    "median": "median, µs",
    "op / callable": "op / callable",
    "kernel": "kernel",
    OF_PEAK: "of peak",
}


def _formats() -> Mapping[str, str]:
    """Return the formats of plots by suffix."""
    from matplotlib.backend_bases import FigureCanvasBase  # optional

    found: Mapping[str, str] = FigureCanvasBase.get_supported_filetypes()
    return found


def _draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:  # Any: names and numbers
    """Write one bar per figure, grouped by sample and mode.

    Args:
        rows: figures with op, sample, callable, mode and minimum, µs.
        path: its suffix is one of `_formats`.
    """
    from matplotlib.figure import Figure  # optional

    groups = list(dict.fromkeys((row["op"], row["sample"], row["mode"]) for row in rows))
    names = list(dict.fromkeys(row["callable"] for row in rows))
    figure = Figure(figsize=(10, min(1.5 + 0.3 * len(groups) * len(names), TALLEST)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(names)
    for position, name in enumerate(names):
        own = {(row["op"], row["sample"], row["mode"]): row["minimum"] for row in rows if row["callable"] == name}
        bars = [(groups.index(group) + position * height, minimum) for group, minimum in own.items()]
        axes.barh([at for at, _ in bars], [minimum for _, minimum in bars], height, label=name)
    middle = 0.4 - height / 2
    labels = [f"{op}\n{_short(sample)}\n{mode}" for op, sample, mode in groups]
    axes.set_yticks([index + middle for index in range(len(groups))], labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("time per call, µs (shortest of all rounds)")
    axes.legend()
    figure.savefig(path, dpi=120)


def _short(sample: str) -> str:
    return sample if len(sample) <= LONGEST_LABEL else f"{sample[: LONGEST_LABEL - 1]}…"


LONGEST_LABEL = 60
TALLEST = 400  # inches; matplotlib draws nothing taller than 65536 dots
