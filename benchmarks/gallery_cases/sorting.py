"""What sort and top_k are measured on."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from cases import Case
from gallery.sorting import sort, top_k  # examples/ is on the path
from torch import Tensor

LLAMA = {"rows": 64, "classes": 32_000}


def sorted_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch's own, which promises no order of equal numbers."""
    values, indices = torch.sort(x)
    return values, indices


def stable_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch's own, with equal numbers in their order, as in the op."""
    values, indices = torch.sort(x, stable=True)
    return values, indices


def largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """PyTorch's own, which promises no order of equal numbers."""
    values, indices = torch.topk(x, k)
    return values, indices


def logits(device: str, dtype: torch.dtype) -> tuple[Tensor]:
    """A batch of rows over the vocabulary."""
    return (torch.randn(LLAMA["rows"], LLAMA["classes"], dtype=dtype, device=device).requires_grad_(),)


def logits_and_k(device: str, dtype: torch.dtype) -> tuple[Tensor, int]:
    """The same, and how many are sampled from."""
    return *logits(device, dtype), 50


def per_number(gradient: Tensor) -> Tensor:
    """The sum over equal numbers of a row: which of them comes first is not determined where the sort is not stable."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # as for the arguments
        (x,) = logits(str(gradient.device), gradient.dtype)
    ordered, order = x.detach().sort(-1)
    group = F.pad((ordered[:, 1:] != ordered[:, :-1]).cumsum(-1), (1, 0))
    wide = gradient.detach().float()
    return torch.zeros_like(wide).scatter_add(-1, group, wide.gather(-1, order))


def cases() -> Iterator[Case]:
    """Sampling from Llama's vocabulary: the 50 largest (top k), and all in order (top p)."""
    for dtype in (torch.float32, torch.bfloat16):
        name = f"64 rows of 32000 logits, {str(dtype).removeprefix('torch.')}"
        target = {("eager", "forward"): 1 / 1.5}
        top = f"top 50 of {name}", top_k, largest, partial(logits_and_k, dtype=dtype), {}, target
        whole = f"sort {name}", sort, sorted_rows, partial(logits, dtype=dtype), {"stable": stable_rows}, target
        yield Case(*top, determined=per_number)
        yield Case(*whole, determined=per_number)
