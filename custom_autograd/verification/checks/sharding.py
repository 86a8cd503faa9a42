"""Calls with DTensors against calls with whole tensors: every combination of placements, up to a limit.

It runs on the ranks of a process group, or in one process that plays them (torch's LocalTensorMode).
The check `sharding` runs on such ranks in place of the one of all checks if --ranks is given.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from torch import Tensor

from custom_autograd.core.errors import GradientError, KernelError
from custom_autograd.schema.samples import Sample
from custom_autograd.shapes.rule import described_op
from custom_autograd.torch_private import collectives
from custom_autograd.verification.calls.call import Call, Outcome, begin_on, find_change, numbers_like, run
from custom_autograd.verification.harness.agreement import to_double
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    first_line,
    root_cause,
    skipped,
)
from custom_autograd.verification.harness.comparison import Difference
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.settings import is_random
from custom_autograd.verification.harness.targets import Function, Target
from custom_autograd.verification.harness.tracing import BACKEND, compiled, is_limit_of_torch

Mesh: TypeAlias = Any
"""A DeviceMesh (Any: its module takes half a second to import)."""
Placements: TypeAlias = tuple[Any, ...]
"""Of one tensor, one for each dimension of a mesh (Any: classes of torch's)."""


class PlacedCalls:
    """The calls of one sample, in float64.

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
        self.written = target.written_positions(sample)
        wide = sample.map(lambda tensor: to_double(tensor.detach()))
        able = () if self.written else (i for i, tensor in enumerate(wide.tensors()) if tensor.is_floating_point())
        self.call = Call(wide, frozenset(able))
        self.names = [target.name_of(leaf) for leaf in sample.leaves()]

    def findings(self) -> Iterator[Finding]:
        """Yield one finding for each combination, and for each of those that are compiled."""
        with collectives.one():
            try:
                expected = run(self.target, self.target.call, self.call)
            except GradientError as error:  # the forward is compared all the same
                self.call = replace(self.call, needs=frozenset())
                yield skipped(f"gradients: {first_line(error)}")
                expected = run(self.target, self.target.call, self.call)
        options = [self._options(position, tensor) for position, tensor in enumerate(self.call.sample.tensors())]
        taken = []
        for combination in chosen(options, self.limit, self.seed):
            finding = self._finding(combination, expected, self.target.call)
            if finding.status != "skipped":
                taken.append(combination)
            yield finding
        for combination in taken[-self.compiled :] if self.compiled else ():
            function = compiled(self.target.call, backend=BACKEND, fullgraph=True, dynamic=False)
            yield self._finding(combination, expected, function, "compiled, ")

    def _finding(
        self, combination: Sequence[Placements], expected: Outcome, function: Function, how: str = ""
    ) -> Finding:
        where = how + ", ".join(
            f"{name}: {' '.join(map(str, placements))}"
            for name, placements in zip(self.names, combination, strict=True)
        )
        try:
            difference = self._difference(combination, expected, function)
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

    def _difference(
        self, combination: Sequence[Placements], expected: Outcome, function: Function
    ) -> Difference | None:
        """Return how the results of placed tensors differ, or else the gradients."""
        pairs = zip(self.call.sample.tensors(), combination, strict=True)
        leaves = [self._placed(tensor, placements) for tensor, placements in pairs]
        for position in self.call.needs:
            leaves[position].requires_grad_()
        begun = begin_on(self.target, function, self.call, leaves)
        results = {name: collectives.whole(y) for name, y in begun.detached().items()}
        difference = find_change(results, {name: y for name, y in expected.items() if name not in begun.leaves})
        if difference is not None or not begun.leaves:
            return difference
        cotangents = {name: self._replicated(numbers_like(expected[name], name)) for name in begun.able()}
        grads = {name: collectives.whole(grad) for name, grad in begun.backward(cotangents).items()}
        return find_change(grads, {name: expected[name] for name in grads})

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


MIXED = "got mixed torch.Tensor and DTensor"
"""What torch raises where a rule that is written in its operations makes plain tensors."""


RANKS, MOST = 4, 6
"""Ranks that are played, and how many combinations of placements are tried there at most for each sample."""

MOST_ON_RANKS, COMPILED = 64, 2
"""How many on the ranks of a mesh, and how many of them in compiled code as well."""


class Sharding(Check):
    """DTensors on four ranks that one process plays, forward and backward."""

    name = "sharding"
    code = "Y05"
    group = "system"
    needs = ("gradcheck",)
    most_samples = 2
    seed = 0
    purpose = "DTensors give the values and gradients of whole tensors, however they are placed"

    def further(self) -> Check:
        """Return the check with other combinations."""
        other = copy.copy(self)
        other.seed += 1
        return other

    def applies_to(self, target: Target) -> str | None:
        """Skip ops without a line of shapes, and versions of torch that cannot play ranks."""
        record = record_of(target)
        if record is None:
            return "it is not an op of custom_op"
        return self.why_not() if described_op(record) is not None else NO_LINE

    def why_not(self) -> str | None:
        """Return why no op can be checked here."""
        return collectives.why_not()

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield one finding for each combination of placements."""
        if not sample.leaves():
            raise NothingToCheckError("there are no tensors")
        if is_random(target, sample):
            raise NothingToCheckError("it draws random numbers, which differ between ranks")
        yield from self.placed(target, sample)

    def placed(self, target: Target, sample: Sample) -> Iterator[Finding]:
        """Yield the findings of the calls."""
        with collectives.played(RANKS) as mesh:
            yield from PlacedCalls(target, sample, mesh, limit=MOST, seed=self.seed).findings()


NO_LINE = "no line of shapes declares how it can be sharded (shapes=)"


class RanksSharding(Sharding):
    """DTensors on the ranks of a mesh, one of which this process is."""

    most_samples = 3

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    def why_not(self) -> str | None:
        """Return nothing: the ranks are there."""

    def placed(self, target: Target, sample: Sample) -> Iterator[Finding]:
        """Yield the findings of the calls, some of them compiled."""
        yield from PlacedCalls(target, sample, self.mesh, limit=MOST_ON_RANKS, compiled=COMPILED).findings()
