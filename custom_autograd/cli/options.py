"""What the texts of options mean: names, dtypes, numbers of processes and shards."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from custom_autograd.verification.report.runs import Shard


def names_of(text: str) -> list[str]:
    """Return the names in a list separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def dtype_of(name: str | None) -> "torch.dtype | None":
    """Return the dtype of a name such as float64.

    Raises:
        CheckError: there is none of that name.
    """
    import torch  # heavy

    from custom_autograd.core.errors import CheckError  # imports torch

    value = None if name is None else getattr(torch, name.removeprefix("torch."), None)
    if name is not None and not isinstance(value, torch.dtype):
        raise CheckError(f"{name}: there is no dtype of that name; float32, float64, bfloat16 and complex64 are some")
    return value


def ranks_of(text: str) -> int:
    """Return a number of ranks.

    Raises:
        ArgumentTypeError: if the text is not one.
    """
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"a number of ranks is 2 or more, not {text!r}")
    return int(text)


def processes_of(text: str) -> int:
    """Return a number of processes; 0 means none besides this one.

    Raises:
        ArgumentTypeError: if the text is not one.
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a number of processes is 0 or more, not {text!r}")
    return int(text)


def shard_of(text: str) -> "Shard":
    """Return the shard that a text such as 3/16 names.

    Raises:
        ArgumentTypeError: if the text does not name one.
    """
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"a shard is I/N, such as 3/16, with I from 1 to N, not {text!r}")
    from custom_autograd.verification.report.runs import Shard  # imports torch

    return Shard(int(number), int(count))
