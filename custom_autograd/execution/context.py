"""The ctx that a rule in the style of `torch.library` sees, and how it is kept until the backward.

Its author sees torch's names. Behind it every tensor goes through `save_for_backward`, also one that was parked on ctx
as an attribute, so that hooks, version checks and checkpointing see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_autograd.torch_private.trees import flatten_tree, unflatten_tree
from custom_autograd.values.tensors import plain


class Context:
    """The ctx that a drop-in rule sees. What it keeps for itself has names that no user's setup_context takes."""

    custom_autograd_saved: tuple[Tensor | None, ...] = ()
    custom_autograd_fixed: tuple[Tensor, ...] = ()
    custom_autograd_materializes = True

    def __init__(self, needs_input_grad: tuple[Any, ...]) -> None:
        self.needs_input_grad = needs_input_grad

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """Return what `save_for_backward` got."""
        return self.custom_autograd_saved

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Save tensors for the backward; the last call counts."""
        check_saved(tensors)
        self.custom_autograd_saved = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Do nothing, for compatibility: forward mode reads what `save_for_backward` saved."""

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Declare outputs of this call to carry no gradient."""
        self.custom_autograd_fixed = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Set whether undefined incoming gradients reach the backward as zeros (the default) or as None."""
        self.custom_autograd_materializes = value


def attributes_of(context: Context) -> dict[str, Any]:  # Any: whatever the author of a rule keeps
    """Return the attributes that a setup_context has set on a context."""
    return {name: value for name, value in vars(context).items() if name not in OWN}


def is_parted(value: Any) -> bool:  # Any: whatever the author of a rule keeps
    """Return True if a value may hold tensors: all but simple ones, and containers of no tensor."""
    return type(value) not in SIMPLE and (type(value) not in (list, tuple, dict) or _holds_tensors(value))


def _holds_tensors(value: Any) -> bool:  # Any: as above
    if type(value) in SIMPLE:
        return False
    if type(value) in (list, tuple):
        return any(map(_holds_tensors, value))
    if type(value) is dict:
        return any(map(_holds_tensors, value.values()))
    return any(isinstance(leaf, Tensor) for leaf in flatten_tree(value)[0])


def pack(context: Context) -> tuple[tuple[Tensor | None, ...], SavedValues]:
    """Return all tensors that a context holds, and the saved values of everything else."""
    saved, materializes = context.custom_autograd_saved, context.custom_autograd_materializes
    attributes = attributes_of(context)
    parted = {name: value for name, value in attributes.items() if is_parted(value)}
    if not parted:
        return saved, SavedValues(attributes, (), None, len(saved), materializes)
    kept = {name: value for name, value in attributes.items() if name not in parted}
    leaves, structure = flatten_tree(parted)
    parked = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    others = tuple(PARKED if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    return (*saved, *parked), SavedValues(kept, others, structure, len(saved), materializes)


def unpack(tensors: Sequence[Tensor | None], saved: SavedValues, needs_input_grad: tuple[Any, ...]) -> Context:
    """Return the inverse of `pack`."""
    context = Context(needs_input_grad)
    context.custom_autograd_saved = tuple([plain(tensor) for tensor in tensors[: saved.saved_count]])
    context.custom_autograd_materializes = saved.materializes
    parted = saved.parted([plain(tensor) for tensor in tensors[saved.saved_count :]])
    for name, value in {**saved.attributes, **parted}.items():  # not `update`, which torch 2.11 cannot trace
        setattr(context, name, value)
    return context


class SavedValues(NamedTuple):
    """The values of a Context besides tensors.

    Attributes:
        attributes: its attributes that hold no tensor: the same objects, as torch keeps them.
        leaves: the leaves of those that hold some, with PARKED in place of each tensor.
        structure: the structure of those leaves; None if there are none.
        saved_count: how many of the tensors came through `save_for_backward`.
        materializes: whether undefined gradients become zeros.
    """

    attributes: dict[str, Any]
    leaves: tuple[Any, ...]
    structure: Any  # Any: torch's TreeSpec
    saved_count: int
    materializes: bool

    def parted(self, tensors: Sequence[Any]) -> dict[str, Any]:  # Any: tensors, or what stands for one
        """Return the attributes that hold tensors, made of those."""
        if not self.leaves:
            return {}
        parked = iter(tensors)
        filled = [next(parked) if leaf is PARKED else leaf for leaf in self.leaves]
        attributes: dict[str, Any] = unflatten_tree(filled, self.structure)
        return attributes

    @property
    def has_tensors(self) -> bool:
        """Return True if tensors were saved along with it."""
        return self.saved_count > 0 or any(leaf is PARKED for leaf in self.leaves)


OWN = frozenset(
    ("needs_input_grad", *(f"custom_autograd_{name}" for name in ("saved", "fixed", "materializes", "dirty")))
)
SIMPLE: frozenset[type] = frozenset({int, float, bool, str, type(None), torch.Size, torch.dtype, torch.device})
PARKED = object()
"""Replaces a tensor among the saved values."""


def check_saved(tensors: Sequence[Any]) -> None:  # Any: whatever a user gave to save_for_backward
    """Raise TypeError where something that is to be saved is not a tensor."""
    for index, tensor in enumerate(tensors):
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"save_for_backward can only save tensors, but argument {index} is of type "
                f"{type(tensor).__name__}: keep other values as attributes of ctx"
            )
