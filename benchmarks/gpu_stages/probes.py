"""Runs each probe of a stage in a process of its own, several at once, and records what it returned or how it ended."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from processes import Ended, Job, end_jobs_on_sigterm, run_all
from stage import Stage, environment, this_stage

Probe = Callable[[Stage], dict[str, Any]]
FOUND = "probe found: "


def main() -> None:
    """Run all probes of a module, or the one that is named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--module", required=True)
    parser.add_argument("--one")
    stage, options = this_stage(parser)
    probes: dict[str, Probe] = importlib.import_module(options.module).PROBES
    if options.one:
        print(FOUND + json.dumps(probes[options.one](stage), default=str), flush=True)
        return
    end_jobs_on_sigterm()
    stage.plan(list(probes))
    command = [sys.executable, __file__, "--module", options.module, *stage.options()]
    jobs = [Job(name, [*command, "--one", name], stage.seconds_left, environment()) for name in probes]
    for ended in run_all(jobs, at_once=max(2, os.cpu_count() or 2), until=stage.until - 1):
        facts = facts_of(ended)
        how = "left out" if "left out" in facts.get("found", {}) else ended.how
        stage.add(ended.job.name, how=how, seconds=round(ended.seconds, 1), **facts)


def facts_of(ended: Ended) -> dict[str, Any]:
    """Return what a probe found; of one that failed, the last lines of its output."""
    found = [line.removeprefix(FOUND) for line in ended.output.splitlines() if line.startswith(FOUND)]
    if ended.status == 0 and found:
        return {"found": json.loads(found[-1])}
    return {"last lines": ended.last_lines()}


def only_on(kind: str, probe: Probe) -> Probe:
    """Return a probe that is left out on other devices."""

    def left_out_elsewhere(stage: Stage) -> dict[str, Any]:
        return probe(stage) if stage.device.startswith(kind) else {"left out": f"the device is {stage.device}"}

    return left_out_elsewhere


if __name__ == "__main__":
    main()
