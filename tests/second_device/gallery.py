"""Ops of the gallery on the second device, with the kernels of the CPU, which read its memory, else with references."""

from pathlib import Path

from custom_autograd import check
from custom_autograd.verification.harness.op_files import load
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.targets import target_of
from second_device.host_kernels import copy_autocast_policy, serve_by_host_kernels

GALLERY = Path(__file__).parents[2] / "examples" / "gallery"


def ops():
    """Return the ops that have samples by name."""
    targets = {loaded.value: target_of(loaded.value) for loaded in load(str(GALLERY))}
    found = {target.name.removeprefix("gallery::"): op for op, target in targets.items() if target.samples is not None}
    for record in filter(None, (record_of(targets[op]) for op in found.values())):
        serve_by_host_kernels(record)
        copy_autocast_policy(record)
    return found


def problems(op, checks):
    """Return the findings of checks on the device, of which none passes without a sample there."""
    report = check(op, checks=checks, device="second")
    assert [row for row in report.results if row.status == "passed"]
    return [f"{row.op} {row.check} {row.sample}: {row.message}" for row in report.results if row.is_finding]
