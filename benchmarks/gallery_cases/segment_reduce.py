"""What segment_reduce is measured on."""

from collections.abc import Iterator
from functools import partial

import torch
from cases import Case
from gallery.segment_reduce import segment_reduce  # examples/ is on the path
from torch import Tensor

# A graph network on a part of ogbn-arxiv: 7 edges per node on average, 128 features.
NODES, EDGES, FEATURES = 10_000, 70_000, 128


def reference(x: Tensor, offsets: Tensor, reduce: str) -> Tensor:
    """What people write: the segment of each row, then a scatter."""
    counts = offsets.diff()
    segments = torch.arange(len(counts), device=x.device).repeat_interleave(counts, output_size=len(x))
    if reduce == "max":
        index = segments.unsqueeze(1).expand_as(x)
        return x.new_full((len(counts), x.shape[1]), -torch.inf).scatter_reduce(0, index, x, "amax")
    total = x.new_zeros(len(counts), x.shape[1]).index_add(0, segments, x)
    return total if reduce == "sum" else total / counts.clamp(min=1).unsqueeze(1)


def built_in(x: Tensor, offsets: Tensor, reduce: str) -> Tensor:
    """PyTorch's own, whose mean of no rows is NaN unless it is told what to begin with."""
    return torch.segment_reduce(x, reduce, offsets=offsets, axis=0, initial=0 if reduce == "mean" else None)


def arguments(device: str, dtype: torch.dtype, reduce: str) -> tuple[Tensor, Tensor, str]:
    """Features of edges, sorted by node."""
    owners = torch.randint(NODES, (EDGES,), generator=torch.Generator().manual_seed(0))
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), torch.bincount(owners, minlength=NODES).cumsum(0)))
    return torch.randn(EDGES, FEATURES, dtype=dtype, device=device).requires_grad_(), offsets.to(device), reduce


def per_segment(gradient: Tensor) -> Tensor:
    """The sum over each segment: of equal maxima one may have the gradient, or each a share."""
    _, offsets, _ = arguments(str(gradient.device), gradient.dtype, "max")
    return reference(gradient.float(), offsets, "sum")


def cases() -> Iterator[Case]:
    """Messages of a graph network; torch.segment_reduce takes bfloat16 too."""
    for dtype in (torch.float32, torch.bfloat16):
        for reduce in ("sum", "mean", "max"):
            yield Case(
                f"{reduce} of {EDGES} edges, {str(dtype).removeprefix('torch.')}",
                segment_reduce,
                reference,
                partial(arguments, dtype=dtype, reduce=reduce),
                # Among equal maxima, which bfloat16 has, PyTorch divides only positive gradients.
                {} if (reduce, dtype) == ("max", torch.bfloat16) else {"built-in": built_in},
                {("eager", "forward"): 1 / 1.5, ("eager", "backward"): 1.0},
                **({"determined": per_segment} if reduce == "max" else {}),
            )
