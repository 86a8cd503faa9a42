"""The text that the language model learns: Python's own documentation, which every Python installation carries."""

import importlib
import inspect

import torch
from torch import Tensor

VOCABULARY = 256  # the model reads bytes
SUBSTITUTES = ("argparse", "asyncio.base_events", "datetime", "decimal", "inspect", "logging", "tarfile", "typing")


def text() -> bytes:
    """The help topics of the language reference, in alphabetical order (about 0.5 MB)."""
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except (ImportError, AttributeError):  # some distributions leave the topics out
        return source_code()
    return "\n".join(topics[name] for name in sorted(topics)).encode()


def source_code() -> bytes:
    """The source of a few modules of the standard library: what is learnt where there are no help topics."""
    return "\n".join(inspect.getsource(importlib.import_module(name)) for name in SUBSTITUTES).encode()


def batches(corpus: bytes, *, steps: int, batch: int, context: int, seed: int) -> Tensor:
    """Random windows of the corpus.

    Args:
        corpus: the text.
        steps: how many batches.
        batch: windows in each batch.
        context: bytes that the model sees; a window has one more, the last target.
        seed: the same seed gives the same windows, so that all runs see the same data.

    Returns:
        (steps, batch, context + 1), int64.
    """
    data = torch.frombuffer(bytearray(corpus), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(data) - context, (steps, batch, 1), generator=generator)
    return data[starts + torch.arange(context + 1)]
