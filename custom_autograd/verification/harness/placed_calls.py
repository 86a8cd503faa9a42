"""Calls with DTensors against calls with whole tensors: every combination of placements, up to a limit.

It runs on the ranks of a process group, or in one process that plays them (torch's LocalTensorMode).
The check `sharding` runs on such ranks in place of the one of all checks if --ranks is given.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientError, KernelError
from custom_autograd.schema.samples import Sample
from custom_autograd.shapes.rule import described_op
from custom_autograd.torch_private import collectives
from custom_autograd.verification.harness.agreement import to_double
from custom_autograd.verification.harness.base import PASSED, Check, Finding, failed, first_line, root_cause, skipped
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.differentiable import gradients
from custom_autograd.verification.harness.records import output_names, record_of
from custom_autograd.verification.harness.settings import is_random
from custom_autograd.verification.harness.targets import Function, Target, call_on
from custom_autograd.verification.harness.tracing import BACKEND, compiled, is_limit_of_torch

Mesh: TypeAlias = Any
"""A DeviceMesh (Any: its module takes half a second to import)."""
Placements: TypeAlias = tuple[Any, ...]
"""Of one tensor, one for each dimension of a mesh (Any: classes of torch's)."""


@dataclass(frozen=True, slots=True)
class WholeResults:
    """What a call with whole tensors gives.

    Attributes:
        outputs: the outputs, and what the written tensors hold then.
        cotangents: of the outputs that have a gradient; None for the others.
        grads: of the leaves; None for one that has none.
    """

    outputs: tuple[Tensor, ...]
    cotangents: tuple[Tensor | None, ...]
    grads: tuple[Tensor | None, ...]


class PlacedCalls:
    """The calls of one sample.

    Args:
        target: what is called.
        sample: the call.
        mesh: of the ranks.
        limit: how many combinations are tried.
        compiled: how many of them are also tried in compiled code, which played ranks cannot run.
        seed: which, if there are more.
    """

    def __init__(
        self, target: Target, sample: Sample, mesh: Mesh, *, limit: int, compiled: int = 0, seed: int = 0
    ) -> None:
        self.target, self.mesh, self.limit, self.compiled, self.seed = target, mesh, limit, compiled, seed
        self.sample = sample.with_tensors([to_double(leaf.tensor) for leaf in sample.leaves()])
        self.written = target.written_positions(sample)
        self.is_recorded = not self.written
        self.names = [target.name_of(leaf) for leaf in sample.leaves()]

    def findings(self) -> Iterator[Finding]:
        """Yield one finding for each combination, and for each of those that are compiled."""
        with collectives.one():
            try:
                expected = self._expected()
            except GradientError as error:  # the forward is compared all the same
                self.is_recorded = False
                yield skipped(f"gradients: {first_line(error)}")
                expected = self._expected()
        tensors = [leaf.tensor for leaf in self.sample.leaves()]
        options = [self._options(position, tensor) for position, tensor in enumerate(tensors)]
        taken = []
        for combination in chosen(options, self.limit, self.seed):
            finding = self._finding(combination, expected, self.target.call)
            if finding.status != "skipped":
                taken.append(combination)
            yield finding
        for combination in taken[-self.compiled :] if self.compiled else ():
            function = compiled(self.target.call, backend=BACKEND, fullgraph=True, dynamic=False)
            yield self._finding(combination, expected, function, "compiled, ")

    def _expected(self) -> WholeResults:
        leaves = self._leaves([leaf.tensor for leaf in self.sample.leaves()])
        outputs = self._outputs(leaves, self.target.call)
        generator = torch.Generator().manual_seed(self.seed)
        cotangents = tuple(
            torch.randn(output.shape, generator=generator, dtype=output.dtype, device="cpu").to(output.device)
            if output.requires_grad
            else None
            for output in outputs
        )
        grads = _grads(outputs, cotangents, leaves)
        return WholeResults(tuple(output.detach() for output in outputs), cotangents, grads)

    def _finding(
        self, combination: Sequence[Placements], expected: WholeResults, function: Function, how: str = ""
    ) -> Finding:
        where = how + ", ".join(
            f"{name}: {' '.join(map(str, placements))}"
            for name, placements in zip(self.names, combination, strict=True)
        )
        try:
            tensors = [leaf.tensor for leaf in self.sample.leaves()]
            pairs = zip(tensors, combination, strict=True)
            leaves = self._leaves([self._placed(tensor, placements) for tensor, placements in pairs])
            outputs = self._outputs(leaves, function)
            difference = _difference(outputs, expected.outputs, output_names(self.target, len(outputs)))
            if difference is None:
                cotangents = [None if one is None else self._replicated(one) for one in expected.cotangents]
                grads = _grads(outputs, cotangents, leaves)
                difference = _difference(grads, expected.grads, [f"the gradient of '{name}'" for name in self.names])
        except KernelError as error:
            return skipped(f"{where}: {first_line(error)}")
        except Exception as error:  # noqa: BLE001 - an op may raise anything on a DTensor
            root = root_cause(error)
            if isinstance(root, KernelError) or MIXED in str(root):  # it says so, and gives nothing wrong
                return skipped(f"{where}: {first_line(root)}")
            if how and is_limit_of_torch(error):
                return skipped(f"{where}: a limit of torch: {first_line(root)}")
            if collectives.is_unplayable(error):
                return skipped(f"{where}: torch cannot play this with slices of different sizes; --ranks can")
            return failed(f"with DTensors ({where}) it raises {first_line(error)}")
        if difference is None:
            return PASSED
        cause = "the line of shapes, or a rule of register_sharding, is not true of the op"
        return failed(f"with DTensors ({where}): {difference} with whole tensors", cause=cause)

    def _leaves(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return new tensors that need a gradient, but for those that the op writes to, which are not leaves then."""
        made = []
        for position, tensor in enumerate(tensors):
            leaf = tensor.detach().clone() if position in self.written else tensor.detach()
            made.append(leaf.requires_grad_(leaf.is_floating_point() and self.is_recorded))
        return made

    def _outputs(self, leaves: Sequence[Tensor], function: Function) -> tuple[Tensor, ...]:
        outputs = call_on(function, self.sample.with_tensors(leaves))
        return (*outputs, *(leaves[position] for position in sorted(self.written)))

    def _options(self, position: int, tensor: Tensor) -> list[Placements]:
        from torch.distributed.tensor import Partial, Replicate, Shard

        per_dim: list[Any] = [Replicate(), *(Shard(dim) for dim in range(tensor.ndim) if tensor.shape[dim] > 1)]
        if tensor.is_floating_point() and position not in self.written:
            per_dim.append(Partial())
        return list(itertools.product(per_dim, repeat=self.mesh.ndim))

    def _placed(self, tensor: Tensor, placements: Placements) -> Tensor:
        from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

        parts = math.prod(self.mesh.size(dim) for dim, one in enumerate(placements) if one.is_partial())
        wholes = [Replicate() if one.is_partial() else one for one in placements]
        whole = distribute_tensor(tensor.detach().clone(), self.mesh, wholes)
        part = whole.to_local() / parts if parts > 1 else whole.to_local()
        local = collectives.on_all_ranks(part, self.mesh.size())
        shape, stride = tensor.shape, tensor.contiguous().stride()
        return cast(
            "Tensor", DTensor.from_local(local, self.mesh, placements, run_check=False, shape=shape, stride=stride)
        )

    def _replicated(self, tensor: Tensor) -> Tensor:
        from torch.distributed.tensor import Replicate

        return self._placed(tensor, (Replicate(),) * self.mesh.ndim)


def chosen(options: Sequence[Sequence[Placements]], limit: int, seed: int) -> Iterator[tuple[Placements, ...]]:
    """Yield all combinations of one option for each tensor; if there are more than `limit`, some, drawn by the seed.

    Of those drawn the first has the first option of each tensor, and the next have each option of a tensor once before
    any of them comes again.
    """
    if math.prod(map(len, options)) <= limit:
        yield from itertools.product(*options)
        return
    yield tuple(of_tensor[0] for of_tensor in options)
    draw = random.Random(seed)
    known = {(0,) * len(options)}
    decks: list[list[int]] = [[] for _ in options]
    while len(known) < limit:
        for deck, of_tensor in zip(decks, options, strict=True):
            if not deck:
                deck += draw.sample(range(len(of_tensor)), len(of_tensor))
        positions = tuple(deck.pop() for deck in decks)
        if positions not in known:
            known.add(positions)
            yield tuple(of_tensor[at] for of_tensor, at in zip(options, positions, strict=True))


def _grads(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor | None], leaves: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Return the gradient of each leaf; None for one that has none."""
    found = iter(gradients(outputs, [leaf for leaf in leaves if leaf.requires_grad], cotangents))
    return tuple(next(found) if leaf.requires_grad else None for leaf in leaves)


def _difference(found: Sequence[Tensor | None], expected: Sequence[Tensor | None], names: Sequence[str]) -> str | None:
    """Return how whole tensors differ; None stands for zeros."""
    wholes, others, labels = [], [], []
    for one, other, name in zip(found, expected, names, strict=True):
        if one is None and other is None:
            continue
        whole = None if one is None else collectives.whole(one)
        wholes.append(torch.zeros_like(cast("Tensor", other)) if whole is None else whole)
        others.append(torch.zeros_like(wholes[-1]) if other is None else other)
        labels.append(name)
    difference = find_difference(wholes, others, names=labels)
    return None if difference is None else difference.message


MIXED = "got mixed torch.Tensor and DTensor"
"""What torch raises where a rule that is written in its operations makes plain tensors."""


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
    return None if described_op(record) is not None else "no line of shapes declares how it can be sharded (shapes=)"


def why_not_sample(target: Target, sample: Sample) -> str | None:
    """Return why a sample cannot be checked with DTensors; None if it can."""
    if not sample.leaves():
        return "there are no tensors"
    return "it draws random numbers, which differ between ranks" if is_random(target, sample) else None
