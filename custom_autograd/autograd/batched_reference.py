"""Runs a reference that vmap cannot batch once for each sample, inside a derivative: gradients flow through it.

Each sample is taken out of the batch, and the results of all samples are put back into it, by differentiable
operations at whatever level of `torch.func` the derivative is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from custom_autograd.torch_private import dispatch, transforms
from custom_autograd.torch_private.functions import direct_apply
from custom_autograd.torch_private.trees import flatten_tree, unflatten_tree

Values = Mapping[str, Any]  # Any: tensors, lists of tensors and other values, by name


class AllSamples(torch.autograd.Function):
    """All samples of a batched tensor as one that is not batched: the opposite of indexing it with `index`."""

    @staticmethod
    def forward(x: Tensor, index: Tensor) -> Tensor:
        """Continue below this level."""
        with dispatch.below_autograd(), transforms.gradients_recorded():
            found: Tensor = all_samples(x, index)
            return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # Any: torch gives it no type
        """Keep the index of the sample."""
        del output
        ctx.index = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the sample."""
        return _sample(grads[0], ctx.index), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        """Return the tangents of all samples."""
        with transforms.gradients_recorded():
            found: Tensor = all_samples(tangents[0], ctx.index)
            return found


def _sample(samples: Tensor, index: Tensor) -> Tensor:
    """Return each sample of all of them, batched."""
    return samples.index_select(0, index.reshape(1).to(samples.device)).squeeze(0)


def _batched(x: Tensor, index: Tensor) -> Tensor:
    """Return all samples at the level of the batch; a batch of another level is a dimension of theirs."""
    level = transforms.VmapLevel()
    (x, index), (dim, dim_of_index) = level.unwrap((x, index))
    with dispatch.without_key("FuncTorchBatched"):
        if dim_of_index is not None:
            return x.movedim(dim, 0)
        found: Tensor = all_samples(x if dim is None else x.movedim(dim, 0), index)
    return found if dim is None else level.wrap(found, 1)


_LIBRARY = torch.library.Library("custom_autograd", "FRAGMENT")
_LIBRARY.define("all_samples(Tensor x, Tensor index) -> Tensor")
_LIBRARY.impl("all_samples", direct_apply(AllSamples), "Autograd")
_LIBRARY.impl("all_samples", _batched, "FuncTorchBatched")
all_samples = torch.ops.custom_autograd.all_samples.default


def for_each_sample(function: Callable[[Values], dict[str, Any]], values: Values) -> dict[str, Any] | None:
    """Return the results of a function that is called for each sample of the innermost batch; None without one."""
    leaves, structure = flatten_tree(dict(values))
    batch = transforms.innermost_batch([leaf for leaf in leaves if isinstance(leaf, Tensor)])
    if batch is None or batch.size == 0:
        return None
    index = batch.index()
    are_batched = [isinstance(leaf, Tensor) and batch.holds(leaf) for leaf in leaves]
    spread = [all_samples(leaf, index) if is_one else leaf for leaf, is_one in zip(leaves, are_batched, strict=True)]
    calls = []
    for sample in range(batch.size):
        chosen = [one[sample] if is_one else one for one, is_one in zip(spread, are_batched, strict=True)]
        calls.append(flatten_tree(function(unflatten_tree(chosen, structure))))
    columns = zip(*(results for results, _ in calls), strict=True)
    joined = [_sample(torch.stack(column), index) if isinstance(column[0], Tensor) else column[0] for column in columns]
    found: dict[str, Any] = unflatten_tree(joined, calls[0][1])
    return found
