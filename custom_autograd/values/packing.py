"""Packs a saved tensor by policies and unpacks it again, with the checks that autograd makes of what it saves itself.

A pair of hooks switches off autograd's check of versions, so that a tensor that is written to after it was saved would
give a wrong gradient: what is kept notes the version, if it shares memory with the tensor. What is kept never refers to
the node that saves it, so that no graph keeps itself alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientError
from custom_autograd.core.metadata import Metadata, metadata_of
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.policy_types import SavingPolicy
from custom_autograd.torch_private import functions
from custom_autograd.torch_private.compiler import is_tracing
from custom_autograd.torch_private.saved_tensors import Hooks
from custom_autograd.torch_private.storages import storages_of
from custom_autograd.torch_private.trees import flatten_tree, unflatten_tree


@dataclass(frozen=True, slots=True)
class PackingStep:
    """One policy, applied to every tensor of a container.

    Attributes:
        unpack: of the policy.
        name: of the policy.
        structure: of the container (Any: torch's TreeSpec).
        metadata: of its tensors, and None for its other leaves.
    """

    unpack: Callable[[Any, Metadata], Tensor]  # Any: what the policy kept
    name: str
    structure: Any
    metadata: Sequence[Metadata | None]


@dataclass(frozen=True, slots=True)
class Packed:
    """What is kept of a saved tensor.

    Attributes:
        value: what the last policy made (Any: of any type).
        steps: the policies, in the order in which they packed.
        source: the tensor, detached, if what is kept shares memory with it; a weak reference to it, if that cannot be
            seen: an object of a policy's own, say an array of NumPy, may be a view of it; else None.
        version: of the tensor when it was saved.
        who: the words for the tensor and its op in messages.
    """

    value: Any
    steps: Sequence[PackingStep]
    source: Tensor | weakref.ref[Tensor] | None
    version: int
    who: Who


@dataclass(frozen=True, slots=True)
class Who:
    """What is saved, in the words of messages.

    Attributes:
        op: the op, or "saving" if it is not known.
        tensor: "'x'", or "a tensor".
        declared: file:line of the op, if it is known.
    """

    op: str = "saving"
    tensor: str = "a tensor"
    declared: str | None = None


def pack(tensor: Tensor, policies: Sequence[SavingPolicy], outer: Hooks | None, who: Who) -> Packed:
    """Return what is kept of a saved tensor."""
    source = tensor.detach()
    is_parameter = functions.is_parameter(tensor)
    value: Any = source
    steps: list[PackingStep] = []
    for policy in policies:
        if policy.changes_parameters or not is_parameter:
            value = _packed(value, policy.pack, policy.unpack, policy.text, steps)
    if outer is not None:
        unpack_outer = outer[1]
        value = _packed(value, outer[0], lambda packed, _: unpack_outer(packed), "the hooks outside of it", steps)
    if outer is not None or is_tracing() or tensor.is_inference():
        return Packed(value, steps, None, 0, who)
    leaves, _ = flatten_tree(value)
    kept = source if _shares_memory(source, leaves) else weakref.ref(tensor) if _is_opaque(leaves) else None
    return Packed(value, steps, kept, functions.version_of(tensor), who)


def unpack(packed: Packed) -> Tensor:
    """Return the tensor again."""
    source = packed.source() if isinstance(packed.source, weakref.ref) else packed.source
    if source is not None and functions.version_of(source) != packed.version:
        raise GradientError(
            packed.who.op,
            f"{packed.who.tensor} was written to after it was saved for the backward",
            expected=f"version {packed.version}, as it was saved",
            found=f"version {functions.version_of(source)}",
            declared=packed.who.declared,
            do="write to a copy of it, or save one",
        )
    value = packed.value
    for step in reversed(packed.steps):
        value = unflatten_tree(_unpacked(step, value, packed.who), step.structure)
    assert isinstance(value, Tensor)
    return value


def _packed(
    value: Any, pack_one: Any, unpack_one: Any, name: str, steps: list[PackingStep]
) -> list[Any]:  # Any: see PackingStep
    leaves, structure = flatten_tree(value)
    metadata = metadata_of(leaves)
    steps.append(PackingStep(unpack_one, name, structure, metadata))
    return [pack_one(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def _unpacked(step: PackingStep, values: list[Any], who: Who) -> list[Any]:  # Any: as above
    found = []
    for value, expected in zip(values, step.metadata, strict=True):
        one = value if expected is None else step.unpack(value, expected)
        if expected is not None and not is_tracing():
            _check(one, expected, step, who)
        found.append(one)
    return found


def _check(found: Any, expected: Metadata, step: PackingStep, who: Who) -> None:  # Any: whatever a policy returns
    if isinstance(found, Tensor):
        if (found.shape, found.dtype, found.device) == (expected.shape, expected.dtype, expected.device):
            return
        text = _shown(found)
    else:
        text = type(found).__name__
    raise GradientError(
        who.op,
        f"the policy {step.name} does not return {who.tensor} as it was saved",
        expected=_shown(expected),
        found=text,
        declared=who.declared,
        do="return a tensor of that shape and dtype, on that device, from its unpack function",
    )


def _shown(tensor: Tensor | Metadata) -> str:
    return f"shape {tuple(tensor.shape)}, {tensor.dtype}, on {tensor.device}"


def _is_opaque(leaves: Sequence[Any]) -> bool:  # Any: what the last policy made
    """Return True if anything but tensors and plain values is kept."""
    return any(not isinstance(leaf, (Tensor, *PLAIN)) for leaf in leaves)


PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size)


def _shares_memory(tensor: Tensor, leaves: Sequence[Any]) -> bool:  # Any: as above
    own, tensors = storages_of(tensor), [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    return own is None or any(not own.isdisjoint(storages_of(one) or own) for one in tensors)
