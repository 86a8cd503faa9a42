"""Checks on the ranks of a process group: real collectives between processes that are started for it.

Results are sent as they are found. A rank that dies before it has sent everything, or that is late, ends the run with
an error that names it; how a process ends after that is not looked at (gloo aborts now and then at exit).
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import distributed

from custom_autograd.core.errors import CheckError
from custom_autograd.verification.harness import runner
from custom_autograd.verification.harness.ranks import RanksSharding
from custom_autograd.verification.harness.runner import Case
from custom_autograd.verification.report import Result

TIMEOUT = "CUSTOM_AUTOGRAD_RANKS_TIMEOUT"
"""Environment variable: how many seconds all ranks may take for one op."""
DEFAULT_TIMEOUT = 300.0
GRACE = 5.0
"""How many seconds a rank that has sent everything may take to end."""

MakeCase = Callable[[], Case]
"""Makes the op and its samples; each rank calls it, so it is a function that can be pickled."""


class _Rank(NamedTuple):
    process: BaseProcess
    pipe: Connection


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
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(count):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (rank, count, str(Path(folder) / "store"), makers, device, seed, seconds, theirs)
            process = context.Process(target=_be_rank, args=arguments, daemon=True)
            process.start()
            theirs.close()
            ranks.append(_Rank(process, ours))
        is_whole = False
        try:
            for _ in makers:
                yield _joined(_listen(ranks, seconds))
            is_whole = True
        finally:
            _end(ranks, GRACE if is_whole else 0.0)


def _listen(ranks: Sequence[_Rank], seconds: float) -> list[list[Result]]:
    """Return the results of one op, once all ranks have sent them.

    Raises:
        CheckError: a rank died, was late, or could not begin.
    """
    deadline = time.monotonic() + seconds
    waiting = {rank.pipe: number for number, rank in enumerate(ranks)}
    found: dict[int, list[Result]] = {}
    while waiting:
        ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            late = ", ".join(str(number) for number in sorted(waiting.values()))
            raise CheckError(f"rank {late} of {len(ranks)} did not end within {seconds:g} s ({TIMEOUT} sets the limit)")
        for pipe in ready:
            assert isinstance(pipe, Connection)
            number = waiting.pop(pipe)
            found[number] = _received(ranks[number], number, len(ranks))
    return [found[number] for number in range(len(ranks))]


def _received(rank: _Rank, number: int, count: int) -> list[Result]:
    try:
        kind, value = rank.pipe.recv()
    except EOFError:
        rank.process.join(GRACE)
        code = rank.process.exitcode
        raise CheckError(f"rank {number} of {count} ended with exit code {code} before it sent its results") from None
    if kind == "failure":
        raise CheckError(f"rank {number} of {count}: {value}")
    return cast("list[Result]", value)


def _end(ranks: Sequence[_Rank], grace: float) -> None:
    deadline = time.monotonic() + grace
    for rank in ranks:
        rank.process.join(max(0.0, deadline - time.monotonic()))
        if rank.process.is_alive():
            rank.process.kill()
            rank.process.join()
        rank.pipe.close()


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


def _be_rank(
    rank: int,
    count: int,
    store: str,
    makers: Sequence[MakeCase],
    device: str,
    seed: int,
    seconds: float,
    pipe: Connection,
) -> None:
    """Be one rank: run the check for one op after the other and send the results of each."""
    try:
        torch.set_num_threads(max(1, torch.get_num_threads() // count))
        if device == "cuda":
            torch.cuda.set_device(rank % torch.cuda.device_count())
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        backend = "nccl" if device == "cuda" else "gloo"
        distributed.init_process_group(
            backend,
            store=distributed.FileStore(store, count),  # type: ignore[attr-defined]  # pyright: ignore[reportPrivateImportUsage]  # it is documented
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=seconds),
        )
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh(device, (count,))
        for make in makers:
            report = runner.run([make()], [RanksSharding(mesh)], seed=seed, is_explained=False)
            pipe.send(("results", list(report.results)))
    except Exception as error:  # noqa: BLE001 - whatever ends a rank is reported
        pipe.send(("failure", f"{type(error).__name__}: {error}"))
        return
    distributed.destroy_process_group()
