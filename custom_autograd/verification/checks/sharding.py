"""DTensors: whatever the placements of the inputs, outputs and gradients are those of a call with whole tensors."""

from collections.abc import Iterable

from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private import collectives
from custom_autograd.verification.harness.base import Check, Finding, skipped
from custom_autograd.verification.harness.placed_calls import PlacedCalls, RanksSharding, why_not, why_not_sample
from custom_autograd.verification.harness.targets import Target

RANKS = 4
MOST = 8
"""How many combinations of placements are tried for each sample."""


class Sharding(Check):
    """DTensors on four ranks that one process plays, forward and backward."""

    name = RanksSharding.name
    code = RanksSharding.code
    group = RanksSharding.group
    needs = ("gradcheck",)
    most_samples = RanksSharding.most_samples
    purpose = RanksSharding.purpose

    def applies_to(self, target: Target) -> str | None:
        """Skip ops without a line of shapes, and versions of torch that cannot play ranks."""
        return why_not(target) or collectives.why_not()

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield one finding for each combination of placements."""
        reason = why_not_sample(target, sample)
        if reason is not None:
            yield skipped(reason)
            return
        with collectives.played(RANKS) as mesh:
            yield from PlacedCalls(target, sample, mesh, limit=MOST).findings()
