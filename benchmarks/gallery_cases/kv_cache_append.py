"""What kv_cache_append is measured on."""

from collections.abc import Iterator
from functools import partial

import torch
from cases import Case
from gallery.kv_cache_append import kv_cache_append  # examples/ is on the path
from torch import Tensor

LLAMA = {"batch": 32, "heads": 8, "length": 512, "features": 128}


def reference(key_cache: Tensor, value_cache: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> None:
    """Indexed assignment."""
    batch = torch.arange(keys.shape[0], device=keys.device).unsqueeze(1)
    place = positions.unsqueeze(1) + torch.arange(keys.shape[2], device=keys.device)
    key_cache.transpose(1, 2)[batch, place] = keys.transpose(1, 2)
    value_cache.transpose(1, 2)[batch, place] = values.transpose(1, 2)


def arguments(device: str, dtype: torch.dtype, tokens: int) -> tuple[Tensor, ...]:
    """Two caches, the new keys and values, and where each sequence ends."""
    shape = LLAMA["batch"], LLAMA["heads"], LLAMA["length"], LLAMA["features"]
    caches = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)]
    fresh = [torch.randn(*shape[:2], tokens, shape[3], device=device).to(dtype) for _ in range(2)]
    return *caches, *fresh, torch.randint(LLAMA["length"] - tokens, (shape[0],), device=device)


def cases() -> Iterator[Case]:
    """A layer of Llama 3 8B, 32 sequences: a step of decoding, and a chunk of a prompt."""
    for tokens, dtype in ((1, torch.bfloat16), (64, torch.bfloat16), (64, torch.float32)):
        yield Case(
            f"Llama 3 8B, 32 sequences, {tokens} tokens, {str(dtype).removeprefix('torch.')}",
            kv_cache_append,
            reference,
            partial(arguments, dtype=dtype, tokens=tokens),
            target={("eager", "forward"): 1 / 1.5},
        )
