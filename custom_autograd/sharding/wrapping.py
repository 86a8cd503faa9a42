"""DTensors to tensors of this rank and back, with the placements of gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from custom_autograd.core.errors import KernelError
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private.placements import PARTIAL, REPLICATE, Placement, is_placed, torch_placements
from custom_autograd.torch_private.symbols import hint_of

Shape: TypeAlias = Sequence[int]
Whole: TypeAlias = Callable[[int, Tensor], Shape]


class Cost(NamedTuple):
    """What a choice costs; of equal ones no rule is taken, which may send more, and replicated tensors stay so.

    Attributes:
        sent: the number of elements that are sent.
        is_combined: a rule combines outputs.
        is_cut: the ranks share the work.
    """

    sent: float
    is_combined: bool
    is_cut: bool

    @staticmethod
    def of(tensor: Any, wanted: Any, dim: int) -> float:  # Any: a DTensor and a placement
        """Return the number of elements that are sent to change the placement of a tensor."""
        if not is_placed(tensor):
            return 0
        placement = tensor.placements[dim]
        if placement == wanted or placement.is_replicate():
            return 0
        size, count = hint_of(tensor.numel()), tensor.device_mesh.size(dim)  # a number would hold for this size only
        if placement.is_partial():
            return size * (1 if wanted.is_shard() else 2)
        return size / count if wanted.is_shard() else size


def local_of(record: OpRecord, tensor: Any, placements: Sequence[Placement], grads: Sequence[Placement]) -> Tensor:
    """Return what this rank has of a DTensor (Any), once it is placed as wanted."""
    if not is_placed(tensor):
        if tensor.ndim == 0 and not tensor.requires_grad:
            return cast("Tensor", tensor)  # the same on all ranks, as torch takes it to be
        raise record.declaration.error(
            KernelError,
            "got mixed torch.Tensor and DTensor",
            expected="DTensors only",
            found="a plain tensor among them",
            do="convert it: distribute_tensor(tensor, mesh)",
        )
    wanted, grads_placed = torch_placements(placements), torch_placements(grads)
    return cast("Tensor", _Unwrap.apply(tensor, wanted, grads_placed))  # type: ignore[no-untyped-call]


class Wrapping:
    """Makes DTensors of the outputs of all ranks.

    Args:
        mesh: of the ranks (Any: DeviceMesh, here and below).
        placements: of the output.
        divisor: what the gradient is divided by: the number of ranks that compute the same output with collectives,
            whose backward adds up the gradients of all ranks.
        second: the placements of what a second derivative returns for this rank's gradient.
        whole: (position in a list, local tensor) -> the shape of the whole output.
    """

    def __init__(
        self, mesh: Any, placements: Sequence[Placement], divisor: int, second: Sequence[Placement], whole: Whole
    ) -> None:
        self.mesh, self.divisor, self._whole = mesh, divisor, whole
        self.second = torch_placements(second)
        self.placements = torch_placements(placements)
        self.grads = torch_placements(REPLICATE if one == PARTIAL else one for one in placements)

    def around(self, local: Any) -> Any:
        """Return an output, or the tensors of an output that is a list; None stays."""
        if isinstance(local, (list, tuple)):
            return [self._around(one, place) for place, one in enumerate(local)]
        return self._around(local, 0)

    def _around(self, local: Any, place: int) -> Any:
        return _Wrap.apply(local, self, self._whole(place, local)) if isinstance(local, Tensor) else local  # type: ignore[no-untyped-call]


class _Unwrap(torch.autograd.Function):
    """`DTensor.redistribute` and `to_local`, with the placements of the gradient.

    torch's own backward of them takes strides from this rank's slice, and refuses some changes of two placements.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Any, wanted: Any, grads: Any) -> Tensor:  # Any: a DTensor, placements
        ctx.mesh, ctx.shape, ctx.grads = tensor.device_mesh, tensor.shape, grads
        ctx.back = torch_placements(REPLICATE if one.is_partial() else one for one in tensor.placements)
        ctx.set_materialize_grads(False)
        placed = tensor if tensor.placements == wanted else tensor.redistribute(placements=wanted)
        local: Tensor = placed.to_local().detach()  # not the tensor that the DTensor holds, which has no history
        return local

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (grad,) = grad_outputs
        if grad is None:
            return None, None, None
        return placed_as(grad, ctx.mesh, ctx.grads, ctx.shape).redistribute(placements=ctx.back), None, None


def placed_as(local: Tensor, mesh: Any, placements: Any, shape: Shape) -> Any:
    """Return the DTensor of which this rank has a tensor."""
    from torch.distributed.tensor import DTensor

    stride = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)


class _Wrap(torch.autograd.Function):
    """`DTensor.from_local`, whose gradient is placed as the output needs it, whatever its placements are."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, wrapping: Wrapping, shape: Shape) -> Tensor:  # Any: torch's context
        ctx.wrapping = wrapping
        ctx.set_materialize_grads(False)
        made: Tensor = placed_as(local, wrapping.mesh, wrapping.placements, shape)
        return made

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # Any: a DTensor
        wrapping: Wrapping = ctx.wrapping
        (grad,) = grad_outputs
        if grad is None:
            return None, None, None
        local = grad.redistribute(placements=wrapping.grads).to_local(grad_placements=wrapping.second)
        return (local if wrapping.divisor == 1 else local / wrapping.divisor), None, None
