"""What the demonstration writes: the curves as JSON and as a plot, the summary as Markdown."""

import json
import platform
from pathlib import Path

import torch

from agreement import Finding, smooth
from training import Run


def summary(runs: list[Run], findings: list[Finding]) -> str:
    """Two tables in Markdown: the speeds, and the answers."""
    reference = runs[0]
    lines = [
        "# A language model with the gallery's ops",
        "",
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {len(reference.losses)} steps.",
        "",
        "| run | last loss (nats) | tokens/s | against the reference | first step (s) |",
        "|---|---|---|---|---|",
    ]
    for run in runs:
        ratio = run.tokens_per_second / reference.tokens_per_second
        last = smooth(run.losses)[-1]
        lines.append(f"| {run.name} | {last:.3f} | {run.tokens_per_second:,.0f} | {ratio:.2f} | {run.seconds[0]:.1f} |")
    lines += ["", "| run | comparison | largest difference | allowed | where | holds |", "|---|---|---|---|---|---|"]
    for finding in findings:
        numbers = f"{finding.difference:.1e} | {finding.tolerance:.0e}"
        answer = "yes" if finding.holds else "NO"
        lines.append(f"| {finding.run} | {finding.question} | {numbers} | {finding.where} | {answer} |")
    return "\n".join(lines) + "\n"


def write_json(path: Path, runs: list[Run], findings: list[Finding]) -> None:
    """Every number of the demonstration."""
    document = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "runs": [
            {
                "name": run.name,
                "losses": run.losses,
                "tokens_per_second": run.tokens_per_second,
                "first_step_seconds": run.seconds[0],
                "seconds": run.seconds,
            }
            for run in runs
        ],
        "findings": [
            {
                "run": finding.run,
                "question": finding.question,
                "difference": finding.difference,
                "tolerance": finding.tolerance,
                "where": finding.where,
                "holds": finding.holds,
            }
            for finding in findings
        ],
    }
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")


def write_plot(path: Path, runs: list[Run]) -> bool:
    """The curves above each other, and how far they are apart; false where matplotlib is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(8, 7), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, sharex=True, height_ratios=[2, 1])
    for run, style in zip(runs, ("-", "--", "-.", ":"), strict=True):
        above.plot(run.losses, style, label=run.name, linewidth=1.5)
    for run in runs[1:]:
        below.semilogy([max(abs(a - b), 1e-8) for a, b in zip(runs[0].losses, run.losses, strict=True)], label=run.name)
    above.set(ylabel="loss (nats for each byte)", title="Language model: plain PyTorch and the gallery's custom ops")
    below.set(ylabel="difference from the reference", xlabel="step")
    above.legend()
    below.legend()
    figure.savefig(path, dpi=120)
    return True
