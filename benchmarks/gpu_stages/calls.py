"""Measures what a call costs in every way to declare an op, on tensors of the device and of the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from stage import Stage, this_stage

from custom_autograd.native.loading import library


def measure_calls(stage: Stage, device: str, seconds: float) -> None:
    """Measure all ways in turns, and record each with its ratio to two peers."""
    from groups import call_group

    from custom_autograd.benchmarking.interleaved import measure

    missing: dict[str, str] = {"C++": "a rehearsal builds nothing"} if stage.is_tiny else {}
    finish: Callable[[], Any] = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    cases = call_group(missing, device)
    timings = measure(cases, seconds=seconds, finish=finish)
    for name, reason in missing.items():
        stage.add(f"{device}: {name}", left_out=reason)
    for name, timing in timings.items():
        mode = name.rpartition(" | ")[2]
        peers = {peer: timings.get(f"{peer} | {mode}") for peer in ("torch.mul", "C++")}
        ratios = {f"/ {peer}": round(timing.minimum / found.minimum, 3) for peer, found in peers.items() if found}
        stage.add(f"{device}: {name}", microseconds=round(timing.minimum, 3), median=round(timing.median, 3), **ratios)


def main() -> None:
    """The device first; the CPU of the same machine for comparison."""
    stage, _ = this_stage()
    devices = list(dict.fromkeys((stage.device, "cpu")))
    stage.plan([f"{device}: {name} | no grad" for device in devices for name in ("torch.mul", "by name", "drop-in")])
    torch.set_num_threads(1)
    library.mode = "require"
    library.load()
    for device in devices:
        measure_calls(stage, device, 0.0 if stage.is_tiny else max(2.0, min(15.0, stage.seconds_left / 4)))


if __name__ == "__main__":
    sys.exit(main())
