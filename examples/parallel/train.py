"""Trains one step on four ranks and on one, and compares the loss and every gradient.

python examples/parallel/train.py                 all layouts, on 4 gloo processes
python examples/parallel/train.py --layout zbv    one of them
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, distributed

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "gallery")]

import plans  # noqa: E402  # beside this file, and its ops in the gallery
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.pipelining import PipelineStage, schedules  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402

from model import Sizes, Transformer, loss_of, make_model  # noqa: E402

RANKS, BATCH, MICROBATCHES = 4, 8, 4
TOLERANCE = 1e-10  # float64: sums in another order


def data(sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Return tokens and labels, each (batch, length)."""
    make = torch.Generator().manual_seed(1)
    tokens = torch.randint(sizes.vocabulary, (BATCH, sizes.length + 1), generator=make)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def alone(sizes: Sizes) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and the gradients of one process."""
    model = make_model(sizes)
    tokens, labels = data(sizes)
    loss = loss_of(model(tokens), labels)
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


def fsdp_and_tensor_parallel(sizes: Sizes) -> tuple[Tensor, Transformer]:
    """FSDP2 over pairs of ranks that share the tensors of each layer."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = make_model(sizes)
    plans.tensor_parallel(model, mesh["tensor"])
    plans.checkpoint_blocks(model)
    plans.fully_sharded(model, mesh["data"])
    group, rank = mesh["data"].get_group(), mesh["data"].get_local_rank()
    tokens, labels = (one.chunk(2)[rank] for one in data(sizes))
    loss = plans.parallel_loss(model(tokens), labels, mesh["tensor"])
    (2 * loss).backward()  # FSDP2 averages over the ranks, and the loss is a sum
    total = loss.detach().clone()
    distributed.all_reduce(total, group=group)
    return total, model


def pipelined(schedule: str, sizes: Sizes) -> tuple[Tensor, Transformer]:
    """Return a pipeline of pairs of ranks that share the tensors of each layer."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "tensor"))
    rank, cls = mesh["stage"].get_local_rank(), getattr(schedules, f"Schedule{schedule}")
    is_single = issubclass(cls, schedules.PipelineScheduleSingle)
    indices = [rank] if is_single else [rank, 3 - rank] if "V" in schedule else [rank, rank + 2]
    count = 2 if is_single else 4
    models = {index: plans.stage_of(make_model(sizes), index, count) for index in indices}
    for model in models.values():
        plans.tensor_parallel(model, mesh["tensor"])
        plans.checkpoint_blocks(model, has_one_backward=is_single)
    group = mesh["stage"].get_group()
    stages = [PipelineStage(model, index, count, torch.device("cpu"), group=group) for index, model in models.items()]

    def loss_fn(logits: Tensor, labels: Tensor) -> Tensor:
        return plans.parallel_loss(logits, labels, mesh["tensor"])

    steps = cls(stages[0] if is_single else stages, MICROBATCHES, loss_fn=loss_fn, scale_grads=False)
    tokens, labels = data(sizes)
    losses: list[Tensor] = []
    steps.step(*((tokens,) if 0 in indices else ()), target=labels if count - 1 in indices else None, losses=losses)
    total = torch.stack(losses).sum().detach() if losses else torch.zeros((), dtype=torch.float64)
    distributed.all_reduce(total, group=group)
    return total, torch.nn.ModuleList(models.values())


LAYOUTS: dict[str, Callable[[Sizes], tuple[Tensor, torch.nn.Module]]] = {
    "fsdp_tp": fsdp_and_tensor_parallel,
    "1f1b": lambda sizes: pipelined("1F1B", sizes),
    "zero_bubble": lambda sizes: pipelined("InterleavedZeroBubble", sizes),
    "zbv": lambda sizes: pipelined("ZBVZeroBubble", sizes),
}


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor as one process has it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def compare(layout: str, sizes: Sizes) -> str:
    """Return a line of the table; raises if the loss or a gradient differs."""
    expected_loss, expected = alone(sizes)
    loss, model = LAYOUTS[layout](sizes)
    found = {name.partition(".")[2] if layout != "fsdp_tp" else name: p.grad for name, p in model.named_parameters()}
    worst = {name: float((whole(grad) - expected[name]).abs().max()) for name, grad in found.items()}
    difference = max(*worst.values(), float((loss - expected_loss).abs()))
    line = f"{layout:<12} loss {float(loss):.6f}   gradients {len(worst):>2}   largest difference {difference:.0e}"
    if not difference < TOLERANCE:
        raise AssertionError(f"{line}, of {max(worst, key=worst.__getitem__)}")
    return line


def work(rank: int, folder: str, layouts: list[str]) -> None:
    """Compare each layout on one rank; the first prints."""
    store = distributed.FileStore(f"{folder}/store", RANKS)
    patience = datetime.timedelta(seconds=120)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=patience)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of PyTorch's own modules, about APIs of theirs
    for layout in layouts:
        line = compare(layout, Sizes())
        if rank == 0:
            print(line, flush=True)
    distributed.destroy_process_group()
    # NOTE: a thread of Gloo that drops a tensor while Python ends aborts the process, so Python does not end it
    os._exit(0)


def main() -> None:
    """Run the layouts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", choices=tuple(LAYOUTS), action="append", help="one layout; all by default")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        arguments = folder, parser.parse_args().layout or list(LAYOUTS)
        torch.multiprocessing.spawn(work, arguments, RANKS)


if __name__ == "__main__":
    main()
