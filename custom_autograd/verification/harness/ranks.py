"""The check `sharding` on the ranks of a process group, which --ranks runs in place of the one of all checks."""

from collections.abc import Iterable

from custom_autograd.schema.samples import Sample
from custom_autograd.shapes.rule import described_op
from custom_autograd.verification.harness.base import Check, Finding, skipped
from custom_autograd.verification.harness.placed_calls import Mesh, PlacedCalls
from custom_autograd.verification.harness.randomness import is_random
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.targets import Target

MOST = 64
"""How many combinations of placements are tried for each sample."""
COMPILED = 2
"""How many of them are tried in compiled code as well."""


class RanksSharding(Check):
    """DTensors on the ranks of a mesh, one of which this process is.

    Args:
        mesh: of the ranks.
    """

    name = "sharding"
    code = "Y05"
    group = "system"
    most_samples = 3
    purpose = "DTensors give the values and gradients of whole tensors, however they are placed"

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    def applies_to(self, target: Target) -> str | None:
        """Skip ops without a line of shapes."""
        return why_not(target)

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield one finding for each combination of placements."""
        reason = why_not_sample(target, sample)
        if reason is not None:
            yield skipped(reason)
        else:
            yield from PlacedCalls(target, sample, self.mesh, limit=MOST, compiled=COMPILED).findings()


def why_not(target: Target) -> str | None:
    """Return why an op cannot be checked with DTensors; None if it can."""
    record = record_of(target)
    if record is None:
        return "it is not an op of custom_op"
    return None if described_op(record) is not None else "no line of shapes says how it can be sharded (shapes=)"


def why_not_sample(target: Target, sample: Sample) -> str | None:
    """Return why a sample cannot be checked with DTensors; None if it can."""
    if not sample.leaves():
        return "there are no tensors"
    return "it draws random numbers, which differ between ranks" if is_random(target, sample) else None
