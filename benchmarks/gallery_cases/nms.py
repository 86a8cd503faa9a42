"""What nms is measured on."""

from collections.abc import Iterator
from functools import partial

import torch
from cases import Case
from gallery.nms import nms  # examples/ is on the path
from torch import Tensor


def reference(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """What people write without torchvision: a table of all overlaps, and a row of it for each box that is kept."""
    order = scores.argsort(descending=True, stable=True)
    first, last = boxes[order, :2], boxes[order, 2:]
    size = (torch.minimum(last, last.unsqueeze(1)) - torch.maximum(first, first.unsqueeze(1))).clamp(min=0)
    shared, area = size.prod(-1), (last - first).prod(-1)
    overlaps = shared / (area + area.unsqueeze(1) - shared) > iou_threshold
    kept = torch.ones_like(order, dtype=torch.bool)
    for row in range(len(order)):
        if kept[row]:
            kept[row + 1 :] &= ~overlaps[row, row + 1 :]
    return order[kept]


def with_numba(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """The op's own kernel in Numba."""
    with nms.use_kernel("numba"):
        return nms(boxes, scores, iou_threshold)


def arguments(device: str, boxes: int) -> tuple[Tensor, Tensor, float]:
    """Boxes of about 4 to 64 pixels in an image of 800 by 800, as a detector proposes them."""
    generator = torch.Generator().manual_seed(0)
    corners, sizes = (torch.rand(boxes, 2, generator=generator) for _ in range(2))
    found = torch.cat((800 * corners, 800 * corners + 4 + 60 * sizes), 1)
    return found.to(device), torch.rand(boxes, generator=generator).to(device), 0.5


def cases() -> Iterator[Case]:
    """Proposals of one level of a detector's pyramid, before the best are kept."""
    name = "1000 proposals, float32"
    yield Case(name, nms, reference, partial(arguments, boxes=1000), {"numba": with_numba}, {("eager", "forward"): 0.5})
