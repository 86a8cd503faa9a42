"""Whether a mutant changes anything on the samples: one that does not cannot be noticed, and is not a survivor."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.differentiable import can_have_gradient
from custom_autograd.verification.harness.sweeps import layouts
from custom_autograd.verification.harness.targets import Target, call_on
from custom_autograd.verification.mutation.changed_results import tensors_of
from custom_autograd.verification.mutation.operators import Mutant
from custom_autograd.verification.mutation.outcomes import MutantStatus
from custom_autograd.verification.mutation.points import Function
from custom_autograd.verification.mutation.states import is_plain


class Equivalence:
    """Runs a right function next to a wrong one, and compares what they return and what they write to.

    Attributes:
        calls: how often the wrong function was called.
        has_changed: whether it returned, wrote or raised anything else than the right one.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.has_changed = False
        self._returned: list[tuple[Tensor, Tensor]] = []

    def paired(self, right: Function, wrong: Function) -> Function:
        """Return the wrong function, watched."""

        def run(*args: Any, **kwargs: Any) -> Any:  # Any: a user's function
            self.calls += 1
            call, before = Sample(*args, **kwargs), Sample(*args, **kwargs).map(torch.clone)
            expected = list(tensors_of(right(*before.args, **before.kwargs)))
            try:
                result = wrong(*args, **kwargs)
                found = list(tensors_of(result))
            except Exception:
                self.has_changed = True
                raise
            self._compare(expected, found)
            self._compare(before.tensors(), call.tensors())
            self._returned += [(one.detach().clone(), one.detach()) for one in found if is_plain(one)]
            return result

        return run

    @property
    def status(self) -> MutantStatus:
        """Return the status before any test ran; "survived" means that nothing is known.

        It looks again at everything that was returned: later calls must not have changed it.
        """
        if self.has_changed or any(_differ(one, other) for one, other in self._returned):
            return "survived"
        return "no change" if self.calls else "not reached"

    def _compare(self, expected: Sequence[Tensor], found: Sequence[Tensor]) -> None:
        self.has_changed |= len(expected) != len(found)
        for one, other in zip(expected, found, strict=False):
            if is_plain(one) and is_plain(other):
                is_cut_off = torch.is_grad_enabled() and one.requires_grad != other.requires_grad
                self.has_changed |= is_cut_off or _differ(one, other)


def _differ(one: Tensor, other: Tensor) -> bool:
    if (one.shape, one.dtype, one.layout) != (other.shape, other.dtype, other.layout):
        return True
    return not torch.allclose(one.detach(), other.detach(), rtol=0, atol=0, equal_nan=True)


def status_on(mutant: Mutant, target: Target, samples: Sequence[Sample]) -> MutantStatus:
    """Return the status of a mutant from samples alone; "survived" means that nothing is known."""
    if mutant.point.kind == "backward" and mutant.part and not _is_wanted(mutant.part, target, samples):
        return "no change"
    return watch(mutant, target, samples).status


def _is_wanted(name: str, target: Target, samples: Sequence[Sample]) -> bool:
    """Return True if a sample has a differentiable tensor for that argument: any other gradient is dropped."""
    leaves = [leaf for sample in samples for leaf in sample.leaves() if can_have_gradient(leaf.tensor)]
    return any(target.argument_of(leaf).name == name for leaf in leaves)


def watch(mutant: Mutant, target: Target, samples: Sequence[Sample]) -> Equivalence:
    """Return what a mutant does on samples and on their other layouts: forward, backward, backward again, and tangents.

    Args:
        mutant: which is installed here; the target is to be that of its op.
        target: the op.
        samples: those that are not declared to raise.
    """
    equivalence = Equivalence()
    with mutant.point.exchange(equivalence.paired(mutant.point.function, mutant.function())):
        for sample in samples:
            for _, variant in layouts(sample):
                _run(target, variant.with_tensors(_marked(variant, sample)), is_forward_mode=mutant.point.kind == "jvp")
    return equivalence


def _marked(variant: Sample, sample: Sample) -> list[Tensor]:
    """Return the variant's tensors, requiring grad where those of the sample do, or wherever they can if none does."""
    marks = [tensor.requires_grad for tensor in sample.tensors()]
    if not any(marks):
        marks = [can_have_gradient(tensor) for tensor in sample.tensors()]
    return [tensor.requires_grad_(mark) for tensor, mark in zip(variant.tensors(), marks, strict=True)]


def _run(target: Target, sample: Sample, *, is_forward_mode: bool) -> None:
    """Run one call with everything that follows from it; the op may refuse any of it."""
    for is_differentiated_again in (True, False, False):
        with contextlib.suppress(Exception):
            _run_backward(target, sample, create_graph=is_differentiated_again)
    for _ in range(2 if is_forward_mode else 0):
        with contextlib.suppress(Exception), forward_ad.dual_level():
            call_on(target.call, sample.map(_dual))


def _run_backward(target: Target, sample: Sample, *, create_graph: bool) -> None:
    written = target.written_positions(sample)
    leaves = sample.tensors()
    values = [tensor.clone() if position in written else tensor for position, tensor in enumerate(leaves)]
    outputs = [y for y in (*call_on(target.call, sample.with_tensors(values)), *values) if y.grad_fn is not None]
    inputs = [tensor for tensor in leaves if tensor.requires_grad]
    cotangents = [torch.randn_like(y) for y in outputs]
    torch.autograd.grad(outputs, inputs, cotangents, create_graph=create_graph, allow_unused=True)


def _dual(tensor: Tensor) -> Tensor:
    if not tensor.requires_grad:
        return tensor.clone()
    dual: Tensor = forward_ad.make_dual(tensor.detach().clone(), torch.randn_like(tensor))
    return dual
