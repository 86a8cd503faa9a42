"""Prints the time in µs in which this process imports a package, declares ops with it, and calls each once.

Run by first_calls.py: python benchmarks/new_process.py PREFIX COUNT forward|backward, with a prefix of DECLARE.
"""

from __future__ import annotations

import sys
import time

import torch
from declarations import DECLARE


def main() -> None:
    """The command line."""
    declare, count, has_backward = DECLARE[sys.argv[1]], int(sys.argv[2]), sys.argv[3] == "backward"
    x, y = torch.rand(8, requires_grad=has_backward), torch.rand(8)
    (torch.ones(1, requires_grad=True) * 2).backward(torch.ones(1))  # torch's own first backward takes 0.2 s
    start = time.perf_counter()
    ops = [declare(f"new_process::op_{index}") for index in range(count)]
    for op in ops:
        out = op(x, y)
        if has_backward:
            out.backward(y)
    print((time.perf_counter() - start) * 1e6)


if __name__ == "__main__":
    main()
