"""torch.vmap over the op equals a loop over the batch, whichever arguments are batched."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from custom_autograd.checks.base import PASSED, Check, Finding, NothingToCheckError, failed, find_refusal, skipped
from custom_autograd.checks.comparison import find_difference
from custom_autograd.checks.sweeps import copy, subsets
from custom_autograd.checks.targets import Target, call_on
from custom_autograd.core.samples import Sample

BATCH = 3


class Vmap(Check):
    """Every subset of the tensors batched along the first dimension, and all of them along the last."""

    name = "vmap"
    code = "T01"
    group = "transforms"
    purpose = "vmap equals a loop over the batch, whichever arguments are batched"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """One finding per subset; an op that says it has no batching rule is honest, and skipped."""
        leaves = sample.leaves()
        if not leaves:
            raise NothingToCheckError("the sample has no tensor to batch")
        written = {i for i, leaf in enumerate(leaves) if target.argument_of(leaf).is_mutated}
        cases = [(chosen, 0) for chosen in subsets(len(leaves)) if written <= set(chosen)]
        cases.append((tuple(range(len(leaves))), -1))
        for chosen, dim in cases:
            finding = _check(target, copy(sample), chosen, dim)
            yield finding
            if finding.status == "skipped":
                return


def _check(target: Target, sample: Sample, chosen: Sequence[int], dim: int) -> Finding:
    tensors = sample.tensors()
    batches = [torch.stack([_vary(tensors[i], step) for step in range(BATCH)], dim) for i in chosen]
    names = ", ".join(f"'{target.name_of(sample.leaves()[i])}'" for i in chosen)

    def call(*batched: Tensor) -> tuple[Tensor, ...]:
        values = list(tensors)
        for position, tensor in zip(chosen, batched, strict=True):
            values[position] = tensor.clone()
        outputs = call_on(target.call, sample.with_tensors(values))
        return outputs + tuple(
            x for x, leaf in zip(values, sample.leaves(), strict=True) if target.argument_of(leaf).is_mutated
        )

    with torch.no_grad():
        slices = [[batch.select(dim, step) for batch in batches] for step in range(BATCH)]
        looped = [call(*one) for one in slices]
        if len({tuple(output.shape for output in outputs) for outputs in looped}) > 1:
            return skipped("the size of its results depends on the data, so they cannot be stacked")
        expected = [torch.stack(step) for step in zip(*looped, strict=True)]
        try:
            found = torch.vmap(call, in_dims=dim, randomness="different")(*batches)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            refusal = find_refusal(error)
            if refusal is None:
                raise
            return skipped(f"the op has no batching rule and says so: {refusal}")
    difference = find_difference(found, expected, factor=10.0)
    return PASSED if difference is None else failed(f"batched over {names} at dimension {dim}: {difference} by a loop")


def _vary(tensor: Tensor, step: int) -> Tensor:
    """The same tensor, scaled a little per step: signs, order and bounds of 1 stay. Integers, which may index, stay."""
    is_continuous = tensor.is_floating_point() or tensor.is_complex()
    return tensor.detach() * (1 - 0.1 * step) if is_continuous else tensor.detach()
