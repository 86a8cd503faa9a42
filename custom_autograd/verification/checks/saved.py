"""What a forward keeps for its backward: through save_for_backward, only what is read, and safe from edits in place.

A saved tensor is read if a gradient changes when its values are replaced at unpacking by others: large and small, of
both signs, never nan. Read by second-order gradients only, or for its shape only, is reported as a number; else it is
waste. Only a target that
makes one Function node of its own is looked at: what torch's own ops save is torch's affair.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from custom_autograd.execution.named_saving import without_policies
from custom_autograd.schema.samples import Sample, TensorFactory
from custom_autograd.verification.calls.call import (
    Begun,
    Call,
    begin,
    call_in_double,
    cotangents_of,
    numbers_like,
    run_repeatably,
)
from custom_autograd.verification.harness.base import Check, Finding, NothingToCheckError, failed, measured
from custom_autograd.verification.harness.comparison import find_difference, is_same
from custom_autograd.verification.harness.differentiable import can_have_gradient, gradients
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.harness.tracing import own_node


class Saved(Check):
    """Tensors on ctx, edits in place, bytes, and tensors that no gradient reads."""

    name = "saved"
    code = "G12"
    group = "saving"
    needs = ("gradcheck", "reuse")
    most_samples = 2
    purpose = "what is saved goes through save_for_backward, is read, and is safe from edits in place"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return numbers for what is fine, one finding for each thing that is not."""
        with without_policies():  # those of the op would hide its tensors from the hooks of this check
            return list(self._findings(target, sample))

    def _findings(self, target: Target, sample: Sample) -> Iterator[Finding]:
        call = call_in_double(target, sample)
        kept = _keep(target, call)
        yield from _on_ctx(kept.node)
        yield measured(**{"bytes saved": float(_bytes(kept.tensors))})
        yield from _edited(target, call)
        record = record_of(target)  # a backward that is derived from the reference needs every input, read or not
        if record is None or record.registrations.gradient_rules():
            yield from _unread(target, call)


@dataclass(frozen=True, slots=True)
class KeptValues:
    """The tensors that one forward saved, in order, with their labels in messages, and the node."""

    tensors: tuple[Tensor, ...]
    labels: tuple[str, ...]
    node: Any


def _keep(target: Target, call: Call) -> KeptValues:
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.detach())
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        begun = begin(target, target.call, call)
    node = own_node(begun.recorded())
    if node is None:
        raise NothingToCheckError("it makes no single Function node, so what it saves is up to the ops it is made of")
    return KeptValues(tuple(saved), tuple(_label(tensor, target, call, begun) for tensor in saved), node)


def _label(tensor: Tensor, target: Target, call: Call, begun: Begun) -> str:
    """Return 'weight', or output 0, by its address in memory; else that it was made in between."""
    known = [(f"'{target.name_of(leaf)}'", leaf.tensor) for leaf in call.sample.leaves()]
    for label, value in [*known, *zip(begun.able(), begun.recorded(), strict=True)]:
        if value.data_ptr() == tensor.data_ptr() and value.shape == tensor.shape:
            return label
    return "a tensor made in the forward"


def _bytes(tensors: Sequence[Tensor]) -> int:
    """Return the bytes of the memory that tensors keep alive, shared memory counted once."""
    return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}.values())


def _on_ctx(node: Any) -> Iterator[Finding]:  # Any: torch types no ctx
    """Yield tensors that hang on ctx as attributes, or in containers there."""
    for name, value in getattr(node, "__dict__", {}).items():  # a native node has none
        tensors = Sample(value).tensors()
        if tensors:
            size = sum(x.numel() * x.element_size() for x in tensors)  # a sparse tensor has no nbytes
            yield failed(
                f"ctx.{name} holds {_count(tensors)} of {size} bytes, expected every tensor in save_for_backward",
                cause="hooks, offloading, checkpointing and the version check do not see it",
            )


def _count(tensors: Sequence[Tensor]) -> str:
    return "a tensor" if len(tensors) == 1 else f"{len(tensors)} tensors"


# ------------------------------------------------------------------------------------------------- edits in place


def _edited(target: Target, call: Call) -> Iterator[Finding]:
    """Edit an input or output after the forward: the backward must raise, or give the same gradient."""
    expected = run_repeatably(target, call)
    begun = begin(target, target.call, call)
    for name in [*begun.leaves, *begun.able()]:
        begun = begin(target, target.call, call.map(torch.clone))
        cotangents = cotangents_of(call, begun)
        label = name.removeprefix("gradient of ")
        try:
            with torch.no_grad():
                {**begun.leaves, **begun.values}[name].mul_(0.5).add_(0.25)
            found = begun.backward(cotangents)
        except RuntimeError:
            continue  # what is to happen: torch compares the version that was saved
        names = [f"the {gradient}" for gradient in found]
        difference = find_difference(list(found.values()), [expected[one] for one in found], names=names)
        if difference is not None:
            yield failed(
                f"{label} is edited in place before the backward, which does not notice: {difference}",
                cause="it is saved outside save_for_backward, or as .data",
            )


# ------------------------------------------------------------------------------------------------------ what is read


Use: TypeAlias = Literal["read", "second order", "their shape", "never"]
"""What a saved tensor is read for first; one of which nothing is known counts as read."""


def _unread(target: Target, call: Call) -> Iterator[Finding]:
    kept = _keep(target, call)
    uses = _uses(target, call, kept.tensors)
    for use in ("second order", "their shape"):
        tensors = [tensor for tensor, other in zip(kept.tensors, uses, strict=True) if use == other]
        if tensors:
            yield measured(**{f"bytes saved for {use} only": float(_bytes(tensors))})
    containers = [label.partition("[")[0] for label in kept.labels]  # a rule names the whole of a list or a dict
    read = {
        name for name, label, use in zip(containers, kept.labels, uses, strict=True) if "[" in label and use in READ
    }
    for i, tensor in enumerate(kept.tensors):
        if uses[i] == "never" and containers[i] not in read and not _is_read_elsewhere(target, i, len(uses)):
            yield failed(
                f"{kept.labels[i]}, of shape {tuple(tensor.shape)}, is saved ({tensor.nbytes} bytes), never read: "
                "no gradient of first or second order changes with its values or its shape",
                cause="the backward does not use it",
            )


READ = ("read", "second order")


def _is_read_elsewhere(target: Target, position: int, count: int) -> bool:
    """Return True if another registered sample reads it: an argument decides what a backward needs."""
    for sample in () if target.samples is None else target.samples(TensorFactory()):
        if sample.error is not None:
            continue
        try:
            call = call_in_double(target, sample)
            uses = _uses(target, call, _keep(target, call).tensors)
        except NothingToCheckError:
            continue
        if len(uses) == count and uses[position] in READ:
            return True
    return False


def _uses(target: Target, call: Call, tensors: Sequence[Tensor]) -> list[Use]:
    run = _Replay(target, call)
    first, second = run.first(), run.second()

    def use_of(position: int, tensor: Tensor) -> Use:
        others = _replacements(tensor)
        if not others or any(not _agree(run.first(position, other), first) for other in others):
            return "read"
        if any(not _agree(run.second(position, other), second) for other in others):
            return "second order"
        return "never" if _agree(run.first(position, _misshapen(tensor)), first) else "their shape"

    return [use_of(*row) for row in enumerate(tensors)]


def _misshapen(tensor: Tensor) -> Tensor:
    """Return zeros of other sizes and another dtype, which a backward does not notice if it reads neither."""
    dtype = torch.float64 if tensor.dtype == torch.float32 else torch.float32
    sizes = (*(size + 3 for size in tensor.shape), tensor.numel() + 7)
    return torch.zeros(sizes, dtype=dtype, device=tensor.device)


@dataclass(frozen=True, slots=True)
class _Replay:
    """Gradients of a call, with one saved tensor replaced when it is unpacked; None if they raise."""

    target: Target
    call: Call

    def first(self, position: int = -1, other: Tensor | None = None) -> Sequence[Tensor] | None:
        """Return the gradients."""
        try:
            begun = self._forward(position, other)
            return list(begun.backward(cotangents_of(self.call, begun)).values())
        except Exception:
            if other is None:
                raise
            return None

    def second(self, position: int = -1, other: Tensor | None = None) -> Sequence[Tensor] | None:
        """Return the gradients of <gradients, directions>, for inputs and incoming gradients."""
        try:
            begun = self._forward(position, other)
            inputs = list(begun.leaves.values())
            incoming = [
                numbers_like(y, name).requires_grad_() for name, y in begun.values.items() if name in begun.able()
            ]
            grads = gradients(begun.recorded(), inputs, incoming, create_graph=True)
            directions = [numbers_like(g, f"direction {i}") for i, g in enumerate(grads)]
            return gradients(grads, [*inputs, *incoming], directions)
        except Exception:  # noqa: BLE001 - an op may have no second order; the check second_order says so
            return None

    def _forward(self, position: int, other: Tensor | None) -> Begun:
        positions = itertools.count()

        def unpack(packed: tuple[int, Tensor]) -> Tensor:
            return other if other is not None and packed[0] == position else packed[1]

        with saved_tensors_hooks(lambda tensor: (next(positions), tensor), unpack):
            return begin(self.target, self.target.call, self.call)


def _agree(one: Sequence[Tensor] | None, other: Sequence[Tensor] | None) -> bool:
    if one is None or other is None:
        return one is other
    return len(one) == len(other) and all(is_same(a, b) for a, b in zip(one, other, strict=True))


def _replacements(tensor: Tensor) -> list[Tensor]:
    """Return other values of the same dtype, of every size and both signs; none for integers, which may index."""
    if tensor.numel() == 0 or tensor.layout != torch.strided:
        return []
    if can_have_gradient(tensor):
        noise = torch.randn_like(tensor)
        return [sign * scale * noise for scale in (0.1, 3.0, 100.0) for sign in (1, -1)]
    if tensor.dtype == torch.bool:
        return [~tensor, torch.ones_like(tensor), torch.zeros_like(tensor)]
    return []
