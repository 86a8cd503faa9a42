"""Measures and verifies all that needs a GPU, in one run of a few minutes: make gpu, or python benchmarks/gpu.py.

It needs Python, PyTorch and no network, and installs nothing. Each stage is a process with its own deadline, so that
a crash or a hang costs one stage. Every figure is written when it is there: results.jsonl and report.md in
benchmarks/results/gpu-NAME/, where NAME is that of the device. What was not reached is printed at the end.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "gpu_stages"))

from plan import Wave, chosen
from processes import Ended, Job, end_jobs_on_sigterm, run_all
from report import write_report
from stage import BENCHMARKS, RESULTS, RUN, Stage, append, environment

DEVICE_NAME = """
import sys, torch
device = sys.argv[1]
if not device.startswith("cuda"):
    print("name:", torch.empty(0, device=device).device.type)
elif torch.cuda.is_available():
    print("name:", torch.cuda.get_device_name(device))
"""
SHOWN = 9000  # characters of the report on the terminal; the file has all of it


def main() -> int:
    """The command line; 1 if a stage did not end by itself."""
    end_jobs_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the plan, and run nothing")
    parser.add_argument("--minutes", type=minutes, default=8.0, help="for all stages together; 8 by default")
    parser.add_argument("--stages", default="", help="names, separated by commas; all by default")
    parser.add_argument("--device", default="cuda", help="another device rehearses the run, with tiny sizes")
    parser.add_argument(
        "--out",
        type=Path,
        default=BENCHMARKS / "results",
        help="where the folder of results goes; benchmarks/results by default",
    )
    options = parser.parse_args()
    try:
        waves = chosen([name for name in options.stages.split(",") if name])
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        print(listed(waves, options.minutes))
        return 0
    name = device_name(options.device)
    if not name:
        seen = "no GPU" if options.device == "cuda" else f"no device '{options.device}'"
        parser.error(f"torch sees {seen}; --device cpu rehearses the run without one")
    try:
        out = new_folder(options.out / f"gpu-{slug(name)}")
    except OSError as error:
        parser.error(f"the results cannot be written, choose another --out: {error}")
    return run(waves, options, out)


def minutes(text: str) -> float:
    """Return a time in minutes.

    Raises:
        ArgumentTypeError: if there is no time.
    """
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"a time is more than 0 minutes, such as 8 or 0.5, not {text!r}")


def listed(waves: tuple[Wave, ...], minutes: float) -> str:
    """Return the plan as text."""
    whole = sum(wave.share for wave in waves)
    limit = f"{minutes:g} minute{'' if minutes == 1 else 's'}"
    lines = [f"{limit} at most; stages with the same number run at the same time"]
    for number, wave in enumerate(waves, 1):
        seconds = 60 * minutes * wave.share / whole
        lines += [f"  {number}  {stage.name:9} {seconds:4.0f} s  {stage.answers}" for stage in wave.stages]
    return "\n".join(lines)


def device_name(device: str) -> str:
    """Return the name of a device, seen by a process of its own; empty if there is none."""
    command = [sys.executable, "-c", DEVICE_NAME, device]
    [ended] = run_all([Job("device", command, 60, {})], at_once=1, until=time.time() + 60)
    return "".join(line.removeprefix("name:") for line in ended.output.splitlines() if line.startswith("name:")).strip()


def slug(name: str) -> str:
    """Return a name for a folder: "h100-80gb-hbm3" for "NVIDIA H100 80GB HBM3"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia")).strip("-")


def new_folder(folder: Path) -> Path:
    """Return the folder, without the results of an earlier run."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (RESULTS, "report.md", "log.txt", "checks.json", "tuning.json", "junit-marked.xml", "junit-of.xml"):
        (folder / name).unlink(missing_ok=True)
    return folder


def run(waves: tuple[Wave, ...], options: argparse.Namespace, out: Path) -> int:
    """Run the waves and print the report, also after Ctrl-C; return 1 if a stage did not end by itself."""
    failures = 1
    append(out, {"stage": RUN, "device": options.device, "stages": [s.name for wave in waves for s in wave.stages]})
    try:
        failures = run_waves(waves, options, out)
    except KeyboardInterrupt:
        print("stopped by Ctrl-C: the report has what was there", flush=True)
    text = write_report(out)
    print(text[:SHOWN] + (f"\n... all of it: {out / 'report.md'}" if len(text) > SHOWN else ""))
    return 1 if failures else 0


def run_waves(waves: tuple[Wave, ...], options: argparse.Namespace, out: Path) -> int:
    """Run the waves, each with its share of the time that is left; return how many stages did not end by themselves."""
    end, is_tiny, failures = time.time() + 60 * options.minutes, not options.device.startswith("cuda"), 0
    for number, wave in enumerate(waves):
        until = time.time() + (end - time.time()) * wave.share / sum(one.share for one in waves[number:])
        stages = [Stage(planned.name, options.device, out.absolute(), until - 1, is_tiny) for planned in wave.stages]
        pairs = zip(wave.stages, stages, strict=True)
        jobs = [Job(s.name, p.command(s.options()), until - time.time(), environment()) for p, s in pairs]
        late = {job.name for job in jobs}
        for ended in run_all(jobs, at_once=len(jobs), until=until):
            failures += ended.status != 0
            late.discard(ended.job.name)
            note(ended, out)
        failures += len(late)
        for planned in (stage for stage in wave.stages if stage.name in late):
            append(out, {"stage": planned.name, "planned": [planned.answers]})
    return failures


def note(ended: Ended, out: Path) -> None:
    """Record how a stage ended, and what it printed."""
    append(out, {"stage": ended.job.name, "ended": ended.how, "seconds": round(ended.seconds, 1)})
    with (out / "log.txt").open("a", encoding="utf-8") as log:
        log.write(f"==== {ended.job.name}: {ended.how}, {ended.seconds:.0f} s\n{ended.output[-200000:]}\n")
    print(f"{ended.job.name}: {ended.how}, {ended.seconds:.0f} s", flush=True)
    if ended.status != 0:
        print("\n".join(f"    {line}" for line in ended.last_lines(6)), flush=True)
    write_report(out)


if __name__ == "__main__":
    sys.exit(main())
