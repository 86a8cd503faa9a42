"""custom-autograd check --ranks: ops with DTensors on processes with real collectives, one op after the other."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from custom_autograd.cli.selected_ops import SelectedOp

if TYPE_CHECKING:
    from custom_autograd.cli.terminal import Advance
    from custom_autograd.verification.harness.runner import Case
    from custom_autograd.verification.report import Report, Result


@dataclass(frozen=True, slots=True)
class MakeCase:
    """Makes the case of an op in another process, which loads the TARGET text itself."""

    text: str
    position: int
    device: str
    dtype: str | None
    seed: int

    def __call__(self) -> "Case":
        """Return the op with its samples."""
        from custom_autograd.cli.options import dtype_of  # imports torch
        from custom_autograd.verification.check import case_of  # imports torch
        from custom_autograd.verification.harness.op_files import load  # imports torch

        value = load(self.text)[self.position].value
        return case_of(value, device=self.device, dtype=dtype_of(self.dtype), seed=self.seed)


def verify(
    arguments: argparse.Namespace, ops: Sequence[SelectedOp], advance: "Advance | None"
) -> "tuple[Report, bool]":
    """Return the report, and whether it is complete.

    Raises:
        CheckError: a rank died, was late, or could not begin.
    """
    from custom_autograd.core.errors import CheckError  # imports torch
    from custom_autograd.verification.isolation.ranks import run_on_ranks, timeout  # imports torch
    from custom_autograd.verification.report import Report  # imports torch

    found: list[Result] = []
    device, seed = arguments.device, arguments.seed
    waiting = [op for op in ops if op.has_samples]
    makers = [MakeCase(op.text, op.position, device, arguments.dtype, seed) for op in waiting]
    try:
        for results in run_on_ranks(makers, arguments.ranks, device, seed, timeout()):
            waiting.pop(0)
            found += results
            for result in results:
                if advance is not None:
                    advance(result.op, result.check, 1)
    except CheckError as error:
        raise CheckError(f"{waiting[0].target.name}: {error}" if waiting else str(error)) from None
    except KeyboardInterrupt:
        return Report(tuple(found)), False
    return Report(tuple(found)), True
