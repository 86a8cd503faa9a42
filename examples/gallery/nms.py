"""Non-maximum suppression: of boxes that overlap, the one with the best score; how many are kept depends on the data.

    box i is kept if no kept box of a better score has area(i and it) / area(i or it) > iou_threshold

Shapes: boxes: (n, 4) as left, top, right, bottom; scores: (n,); kept: (m,), indices by falling score, m <= n.
Dtypes: float64, float32, bfloat16, float16; compared in float64 where one is float64, else in float32; kept int64.
Of equal scores the first box is better, and NaN is better than all. An overlap of NaN, as 0 / 0, suppresses nothing.
Convention: torchvision.ops.nms. Nothing has a gradient.
Source: Felzenszwalb et al. 2010, "Object Detection with Discriminatively Trained Part-Based Models", section 7.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from custom_autograd import Sample, VmapUnavailable, custom_op
from custom_autograd.kernels import cpp_kernel, numba_kernel


def check_shapes(boxes: Tensor, scores: Tensor) -> None:
    """Refuses what is not n boxes and n scores."""
    if boxes.dim() != 2 or boxes.shape[1] != 4:
        raise ValueError(f"gallery::nms: 'boxes' must be (n, 4), found {tuple(boxes.shape)}")
    if scores.dim() != 1 or scores.shape[0] != boxes.shape[0]:
        raise ValueError(
            f"gallery::nms: 'scores' must be ({boxes.shape[0]},), one per box, found {tuple(scores.shape)}"
        )


def in_order(boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The indices by falling score, and the boxes in this order in the dtype of the arithmetic."""
    check_shapes(boxes, scores)
    wide = torch.promote_types(torch.promote_types(boxes.dtype, scores.dtype), torch.float32)
    order = torch.sort(scores, descending=True, stable=True).indices
    return order, boxes[order].to(wide)


@custom_op(
    "gallery::nms",
    outputs=("kept",),
    reference=True,
    tags=torch.Tag.cudagraph_unsafe,  # how many are kept is read on the host
    shapes="boxes: [n] 4, scores: [n] -> kept: _",
    dtypes={"kept": torch.int64},
)
def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """The indices of the boxes that are kept."""
    order, rest = in_order(boxes, scores)
    kept = []
    while len(order):
        best, order, rest = rest[0], order, rest[1:]
        kept.append(order[0])
        size = (torch.minimum(best[2:], rest[:, 2:]) - torch.maximum(best[:2], rest[:, :2])).clamp(min=0)
        shared = size.prod(1)
        both = (best[2:] - best[:2]).prod() + (rest[:, 2:] - rest[:, :2]).prod(1)
        stays = ~(shared / (both - shared) > iou_threshold)
        order, rest = order[1:][stays], rest[stays]
    return torch.stack(kept) if kept else order


# A product that is rounded before it is added is the same everywhere: at the threshold one rounding decides.
kept_cpp = cpp_kernel(Path(__file__).with_suffix(".cpp"), "nms_kept", flags=("-ffp-contract=off",))


@nms.register_kernel("cpu", name="cpp")
def _(boxes, scores, iou_threshold) -> Tensor:
    """C++: each box against all that are kept, a vector of them at a time; tiles of boxes in parallel."""
    order, boxes = in_order(boxes, scores)
    return order[kept_cpp(boxes.contiguous(), iou_threshold)]


@numba_kernel(error_model="numpy")  # 0 / 0 is NaN, as everywhere else
def kept_numba(boxes, threshold) -> np.ndarray:
    """Numba: a loop as one would write it in C."""
    zero, kept = boxes.dtype.type(0), np.ones(len(boxes), np.bool_)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    for i in range(len(boxes)):
        if kept[i]:
            for j in range(i + 1, len(boxes)):
                width = min(boxes[i, 2], boxes[j, 2]) - max(boxes[i, 0], boxes[j, 0])
                height = min(boxes[i, 3], boxes[j, 3]) - max(boxes[i, 1], boxes[j, 1])
                shared = max(width, zero) * max(height, zero)
                kept[j] &= not shared / (area[i] + area[j] - shared) > threshold
    return kept


@nms.register_kernel("cpu", name="numba", priority=-1)
def _(boxes, scores, iou_threshold) -> Tensor:
    """Where there is no compiler."""
    order, boxes = in_order(boxes, scores)
    threshold = boxes.new_tensor(iou_threshold).item()  # rounded as the overlaps are
    return order[kept_numba(boxes, threshold)]


@nms.register_fake
def _(boxes, scores, iou_threshold):
    check_shapes(boxes, scores)
    return scores.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


@nms.register_vmap
def _(info, in_dims, boxes, scores, iou_threshold):
    raise VmapUnavailable("gallery::nms", "each sample of a batch keeps another number of boxes", do="loop over them")


@nms.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    corners, sizes = make(40, 2, low=0, high=3), make(40, 2, low=0.5, high=2)
    boxes = torch.cat((corners, corners + sizes), 1).detach()
    yield Sample(boxes, make(40), 0.3)
    yield Sample(boxes, make(40).round(), 0.5)  # ties
    yield Sample(boxes[:5, [0, 1, 0, 1]], make(5), 0.5)  # empty boxes: 0 / 0
    yield Sample(boxes[:1], make(1), 0.0)
    yield Sample(boxes[:0], make(0), 0.5)
    yield Sample(boxes[:, :3], make(40), 0.5).raises(ValueError, match="'boxes' must be")
    yield Sample(boxes, make(39), 0.5).raises(ValueError, match="'scores' must be")


if __name__ == "__main__":
    nms.check()
