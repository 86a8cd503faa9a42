"""Checks the gallery's ops on the device, each file in a process of its own with a time limit.

The quick checks of all files come first, then all checks as far as time goes. Findings go to checks.json as they come.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from processes import Ended, Job, end_jobs_on_sigterm, run_all
from stage import ROOT, Stage, environment, this_stage, write_whole

GALLERY = ROOT / "examples" / "gallery"
LIMITS = {"quick": 60.0, "all": 120.0}  # s, for one file
FIRST = ("rms_norm", "flash_attention", "softmax_cross_entropy", "dropout", "rope", "gated_units", "fused_add_rms_norm")


def main() -> None:
    """Check all files."""
    end_jobs_on_sigterm()
    stage, _ = this_stage()
    names = ["rope"] if stage.is_tiny else [path.stem for path in files()]
    kinds = ["quick"] if stage.is_tiny else list(LIMITS)
    stage.plan([f"{name}, {kind}" for kind in kinds for name in names])
    findings: dict[str, list[dict[str, Any]] | str] = {}
    with tempfile.TemporaryDirectory() as folder:
        jobs = [job(stage, name, kind, Path(folder)) for kind in kinds for name in names]
        for ended in run_all(jobs, at_once=max(1, min(8, (os.cpu_count() or 2) * 2 // 3)), until=stage.until - 2):
            facts, findings[ended.job.name] = outcome(Path(folder) / f"{ended.job.name}.json", ended)
            stage.add(ended.job.name, how=ended.how, seconds=round(ended.seconds, 1), **facts)
            write_whole(stage.out / "checks.json", json.dumps(findings, indent=1, ensure_ascii=False) + "\n")


def files() -> list[Path]:
    """Return the files that declare ops with samples, those of models first."""
    paths = [path for path in GALLERY.glob("*.py") if "register_samples" in path.read_text(encoding="utf-8")]
    return sorted(paths, key=lambda path: (FIRST.index(path.stem) if path.stem in FIRST else len(FIRST), path.stem))


def job(stage: Stage, name: str, kind: str, reports: Path) -> Job:
    """Return the check of one file."""
    command = [sys.executable, "-m", "custom_autograd", "check", str(GALLERY / f"{name}.py"), "--device", stage.device]
    command += ["--json", str(reports / f"{name}, {kind}.json")]
    command += ["--checks", "quick"] if kind == "quick" else []
    return Job(f"{name}, {kind}", command, LIMITS[kind], {**environment(ROOT), "OMP_NUM_THREADS": "1"})


def outcome(path: Path, ended: Ended) -> tuple[dict[str, Any], list[dict[str, Any]] | str]:
    """Return counts, what does not pass and the last lines; without a report, the last lines and how it ended."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return {"last lines": ended.last_lines()}, ended.how
    found = list(findings_of(report))
    counted = dict(Counter(row["check"] for row in found))
    return {"counts": report["counts"], "findings": counted, "last lines": ended.last_lines(2)}, found


def findings_of(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what failed or ended in an error, with its message cut to a size that can be read."""
    for row in report["results"]:
        if row["status"] in ("failed", "error"):
            kept = {name: row[name] for name in ("op", "check", "sample", "status")}
            yield {**kept, "message": row["message"][:1500]}


if __name__ == "__main__":
    main()
