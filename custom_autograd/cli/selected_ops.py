"""The ops that the TARGETs of a command line name, and the samples that its options make of them."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from custom_autograd.cli.options import dtype_of

if TYPE_CHECKING:
    from custom_autograd.verification.harness.runner import Case
    from custom_autograd.verification.harness.targets import Target
    from custom_autograd.verification.report import Result


@dataclass(frozen=True, slots=True)
class SelectedOp:
    """One op that a TARGET names.

    Args:
        text: the TARGET.
        position: of the op among those that the TARGET names.
        alone: a TARGET that names this op and no other.
        target: what is checked.
    """

    text: str
    position: int
    alone: str
    target: "Target"

    @property
    def has_samples(self) -> bool:
        """Return True if samples are registered."""
        return self.target.samples is not None


def select_ops(texts: Sequence[str], *, done: str = "checked") -> tuple[SelectedOp, ...]:
    """Return every op that the TARGETs name.

    Args:
        texts: the TARGETs.
        done: what the command does to ops.

    Raises:
        CheckError: a TARGET is unknown, or no op has samples.
    """
    from custom_autograd.core.errors import CheckError  # imports torch
    from custom_autograd.verification.harness.op_files import load  # imports torch
    from custom_autograd.verification.harness.targets import target_of  # imports torch

    ops = tuple(
        SelectedOp(text, position, loaded.alone, target_of(loaded.value))
        for text in texts
        for position, loaded in enumerate(load(text))
    )
    if not any(op.has_samples for op in ops):
        names = ", ".join(op.target.name for op in ops)
        raise CheckError(
            f"{names}: nothing was {done}, because no samples are registered (register_samples); "
            "those of ops that have no register_samples are given in Python: check(op, [Sample(...)])"
        )
    return ops


def cases_of(ops: Sequence[SelectedOp], arguments: argparse.Namespace) -> "list[Case]":
    """Return the ops that have samples with these, made for a device, a dtype and a seed."""
    from custom_autograd.verification.check import case_of  # imports torch
    from custom_autograd.verification.harness.devices import device_of  # imports torch

    device, dtype = device_of(arguments.device), dtype_of(arguments.dtype)
    return [case_of(op.target, device=device, dtype=dtype, seed=arguments.seed) for op in ops if op.has_samples]


def results_without_samples(ops: Sequence[SelectedOp]) -> "list[Result]":
    """Return a skipped result for each op without samples."""
    from custom_autograd.verification.report import Result  # imports torch

    reason = "no samples are registered (register_samples)"
    return [Result(op.target.name, "all checks", "no sample", "skipped", reason) for op in ops if not op.has_samples]
