"""Checks on the ranks of a process group: real collectives between processes that are started for it.

Results are sent as they are found. A rank that dies before it has sent everything, or that is late, ends the run with
an error that names it; how a process ends after that is not looked at (gloo aborts now and then at exit).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import torch
from torch import distributed

from custom_autograd.core.errors import CheckError
from custom_autograd.kernels.compilers import end_of
from custom_autograd.verification.checks.sharding import RanksSharding
from custom_autograd.verification.harness import runner
from custom_autograd.verification.harness.runner import Case
from custom_autograd.verification.processes.process import Child, Ending, ParentPipe, next_message, started
from custom_autograd.verification.report import Result

TIMEOUT = "CUSTOM_AUTOGRAD_RANKS_TIMEOUT"
"""Environment variable: how many seconds all ranks may take for one op."""
DEFAULT_TIMEOUT = 300.0
GRACE = 5.0
"""How many seconds a rank that has sent everything may take to end."""

MakeCase = Callable[[], Case]
"""Makes the op and its samples; each rank calls it, so it is a function that can be pickled."""


def timeout() -> float:
    """Return how many seconds all ranks may take for one op.

    Raises:
        CheckError: the environment variable is not a number.
    """
    text = os.environ.get(TIMEOUT, str(DEFAULT_TIMEOUT))
    try:
        return float(text)
    except ValueError:
        raise CheckError(f"{TIMEOUT} is a number of seconds, and not {text!r}") from None


def run_on_ranks(
    makers: Sequence[MakeCase], count: int, device: str, seed: int, seconds: float
) -> Iterator[list[Result]]:
    """Run the check `sharding` on ranks, which are started once for all ops.

    Args:
        makers: each makes an op to check and its samples.
        count: of ranks.
        device: a device type, whose backend is taken: NCCL for "cuda", gloo for "cpu".
        seed: where random numbers begin.
        seconds: how long they may take for one op.

    Yields:
        For each op, the results of all ranks: one that failed on any of them is a failure.

    Raises:
        CheckError: a rank died, was late, or could not begin.
    """
    with contextlib.ExitStack() as stack:
        store = Path(stack.enter_context(tempfile.TemporaryDirectory()), "store")
        works = [_Rank(rank, count, str(store), tuple(makers), device, seed, seconds) for rank in range(count)]
        ranks = [stack.enter_context(started(work, share=count)) for work in works]
        for _ in makers:
            yield _joined(_listen(ranks, seconds))
        deadline = time.monotonic() + GRACE
        for rank in ranks:
            rank.process.join(max(0.0, deadline - time.monotonic()))


def _listen(ranks: Sequence[Child], seconds: float) -> list[list[Result]]:
    """Return the results of one op, once all ranks have sent them.

    Raises:
        CheckError: a rank died, was late, or could not begin.
    """
    deadline = time.monotonic() + seconds
    waiting = dict(enumerate(ranks))
    found: dict[int, list[Result]] = {}
    while waiting:
        heard = next_message(waiting.values(), deadline - time.monotonic())
        if heard is None:
            late = ", ".join(map(str, waiting))
            raise CheckError(f"rank {late} of {len(ranks)} did not end within {seconds:g} s ({TIMEOUT} sets the limit)")
        rank = ranks.index(heard[0])
        if isinstance(heard[1], Ending):
            ended = f" {end_of(heard[1].exit_code)}, before it sent its results"
            raise CheckError(f"rank {rank} of {len(ranks)}{f': {heard[1].error}' if heard[1].error else ended}")
        del waiting[rank]
        found[rank] = cast("list[Result]", heard[1])
    return [found[rank] for rank in range(len(ranks))]


def _joined(results: Sequence[Sequence[Result]]) -> list[Result]:
    """Return one result for each check and sample: of the first rank on which it is a finding, else of rank 0."""
    if len({len(one) for one in results}) > 1:
        raise CheckError(f"the ranks have different numbers of results: {', '.join(str(len(one)) for one in results)}")
    joined = []
    for of_ranks in zip(*results, strict=True):
        found = next((rank for rank, result in enumerate(of_ranks) if result.is_finding), None)
        if found is None:
            joined.append(of_ranks[0])
        else:
            joined.append(replace(of_ranks[found], message=f"on rank {found}: {of_ranks[found].message}"))
    return joined


@dataclass(frozen=True, slots=True)
class _Rank:
    """The work of one rank: the check for one op after the other, and the results of each."""

    number: int
    count: int
    store: str
    makers: tuple[MakeCase, ...]
    device: str
    seed: int
    seconds: float

    def __call__(self, line: ParentPipe) -> None:
        if self.device == "cuda":
            torch.cuda.set_device(self.number % torch.cuda.device_count())
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        distributed.init_process_group(
            "nccl" if self.device == "cuda" else "gloo",
            store=distributed.FileStore(self.store, self.count),  # type: ignore[attr-defined]  # pyright: ignore[reportPrivateImportUsage]  # it is documented
            rank=self.number,
            world_size=self.count,
            timeout=timedelta(seconds=self.seconds),
        )
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh(self.device, (self.count,))
        for make in self.makers:
            report = runner.run([make()], [RanksSharding(mesh)], seed=self.seed, is_explained=False)
            line(list(report.results))
        distributed.destroy_process_group()
