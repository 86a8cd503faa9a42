"""custom-autograd bench: what a call of an op takes on each of its samples, beside its reference and others."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from custom_autograd.checks.runner import Case

PURPOSE = "measure calls of ops on their samples, beside their reference"
MODES = ("no grad", "forward", "forward + backward")

Row = dict[str, Any]  # Any: names, numbers, and None where there is no reference


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this command."""
    parser.add_argument("--compare", metavar="CALLABLE", help="module:attribute or file.py:attribute, called likewise")
    parser.add_argument("--device", metavar="DEVICE", default="cpu", help="where samples live (default: cpu)")
    parser.add_argument("--dtype", metavar="DTYPE", help="the dtype of samples, such as float32")
    parser.add_argument("--seed", type=int, default=0, help="where random numbers begin (default: 0)")
    parser.add_argument("--seconds", type=float, default=1.0, help="wall time per sample, s (default: 1)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    parser.add_argument("--no-backward", action="store_true", help="measure no gradients")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures and the machine as JSON")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw them; needs matplotlib")


def run(arguments: argparse.Namespace) -> int:
    """Measures every target, prints a table; 0.

    Raises:
        CheckError: a target, the callable or a device is unknown, no op has samples, or matplotlib is missing.
    """
    import torch  # heavy

    from custom_autograd.cli.check import cases_of  # imports torch
    from custom_autograd.measuring.machine import describe_machine  # imports torch

    compared = _compared(arguments.compare)
    _check_plot(arguments.plot)
    torch.set_num_threads(arguments.threads)
    cases, _ = cases_of(arguments)
    rows = [
        row for case in cases for index in range(len(case.samples)) for row in _rows(case, index, compared, arguments)
    ]
    print("\n".join(_table(rows)))
    if arguments.json is not None:
        text = json.dumps({"machine": describe_machine(), "rows": rows}, indent=1, ensure_ascii=False)
        arguments.json.write_text(text + "\n", encoding="utf-8")
    if arguments.plot is not None:
        _draw(rows, arguments.plot)
    return 0


def _compared(text: str | None) -> dict[str, Any]:
    """The callable to compare with, by its name."""
    if text is None:
        return {}
    from custom_autograd.checks.loading import load  # imports torch
    from custom_autograd.core.errors import CheckError  # imports torch

    value = load(text)[0].value if ":" in text else None
    if not callable(value):
        raise CheckError(f"{text}: --compare takes a callable: module:attribute or file.py:attribute")
    return {text.rpartition(":")[2]: value}


def _rows(case: "Case", index: int, compared: dict[str, Any], arguments: argparse.Namespace) -> list[Row]:
    """The figures of one sample: all callables in all modes, in one run."""
    import torch  # heavy

    from custom_autograd.measuring.interleaved import measure  # imports torch

    sample = case.samples[index]
    calls = {
        "op": case.target.call,
        **({"reference": case.target.reference} if case.target.reference else {}),
        **compared,
    }
    writes = case.target.written_places(sample)  # a leaf that requires a gradient may not be written to
    modes = MODES[:1] if arguments.no_backward or writes else MODES
    works = {(name, mode): _work(call, sample, mode) for name, call in calls.items() for mode in modes}
    cases = {f"{name}|{mode}": work for (name, mode), work in works.items() if work is not None}
    finish = torch.cuda.synchronize if arguments.device.startswith("cuda") else lambda: None
    timings = measure(cases, seconds=arguments.seconds, finish=finish)
    rows: list[Row] = []
    for key, timing in timings.items():
        name, _, mode = key.partition("|")
        other = timings.get(f"op|{mode}", timing)
        rows.append(
            {
                "op": case.target.name,
                "sample": str(sample),
                "callable": name,
                "mode": mode,
                "minimum": round(timing.minimum, 3),
                "median": round(timing.median, 3),
                "op / callable": round(other.minimum / timing.minimum, 3),
            }
        )
    return rows


def _work(call: Any, sample: Any, mode: str) -> Any:
    """A function without arguments, or None where there is no gradient to ask for."""
    import torch  # heavy

    from custom_autograd.torch_private.trees import flatten_tree, unflatten_tree  # imports torch

    def prepared(leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        can_require = leaf.is_floating_point() or leaf.is_complex()
        return leaf.detach().clone().requires_grad_(can_require and mode != "no grad")

    leaves, structure = flatten_tree((sample.args, sample.kwargs))
    args, kwargs = unflatten_tree([prepared(leaf) for leaf in leaves], structure)
    if mode != "forward + backward":
        return lambda: call(*args, **kwargs)

    def outputs() -> list[torch.Tensor]:
        result = call(*args, **kwargs)
        flat = result if isinstance(result, (tuple, list)) else [result]
        return [tensor for tensor in flat if isinstance(tensor, torch.Tensor) and tensor.requires_grad]

    grads = [torch.ones_like(tensor) for tensor in outputs()]
    return (lambda: torch.autograd.backward(outputs(), grads)) if grads else None


def _table(rows: list[Row]) -> list[str]:
    """One line per figure."""
    heads = ("op", "sample", "callable", "mode", "minimum", "median", "op / callable")
    shown = [[str(row[head]) for head in heads] for row in rows]
    titles = [*heads[:4], "minimum, µs", "median, µs", heads[6]]
    widths = [max(len(line[i]) for line in [titles, *shown]) for i in range(len(heads))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in [titles, *shown]
    ]


def _check_plot(path: Path | None) -> None:
    import importlib.util

    from custom_autograd.core.errors import CheckError  # imports torch

    if path is not None and importlib.util.find_spec("matplotlib") is None:
        raise CheckError("--plot needs matplotlib: pip install custom-autograd[plot]")


def _draw(rows: list[Row], path: Path) -> None:
    """One bar per figure, grouped by sample and mode."""
    import matplotlib as mpl  # optional
    from matplotlib.figure import Figure  # optional

    mpl.use("agg")
    groups = list(dict.fromkeys((row["op"], row["sample"], row["mode"]) for row in rows))
    names = list(dict.fromkeys(row["callable"] for row in rows))
    figure = Figure(figsize=(8, 1.5 + 0.35 * len(groups) * len(names)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(names)
    for place, name in enumerate(names):
        own = {(row["op"], row["sample"], row["mode"]): row["minimum"] for row in rows if row["callable"] == name}
        values = [own.get(group, 0.0) for group in groups]
        axes.barh([index + place * height for index in range(len(groups))], values, height, label=name)
    axes.set_yticks(range(len(groups)), [f"{op} {sample}\n{mode}" for op, sample, mode in groups], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("time per call, µs (shortest of all rounds)")
    axes.legend()
    figure.savefig(path, dpi=120)
