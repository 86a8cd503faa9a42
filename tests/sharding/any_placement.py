"""Asserts that values and gradients do not depend on the placements of DTensors."""

from custom_autograd.torch_private import collectives
from custom_autograd.verification.checks.sharding import PlacedCalls
from custom_autograd.verification.harness.targets import target_of


def assert_placements_do_not_matter(op, sample, sizes):
    """Values and gradients are those of whole tensors, on played ranks of a mesh of these sizes."""
    with collectives.played(*sizes) as mesh:
        findings = list(PlacedCalls(target_of(op), sample, mesh, limit=16).findings())

    assert [] == [finding.message for finding in findings if finding.status == "failed"]
    assert any(finding.status == "passed" for finding in findings)
