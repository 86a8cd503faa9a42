"""How the model lies on ranks: tensor-parallel with sequence-parallel norms, FSDP2 over it, stages of a pipeline."""

from __future__ import annotations

from functools import partial

import softmax_cross_entropy_ranks  # noqa: F401 - its rule lets the loss be cut along the vocabulary
from flash_attention import flash_attention
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

from custom_autograd import checkpointing
from model import Transformer, loss_of

REPLICATED, BY_SEQUENCE = Replicate(), Shard(1)

# Between modules each rank has its part of the sequence, so that norms are cut along it; inside of attention and
# feed-forward each rank has some heads and some features, and ops meet DTensors.
BLOCK = {
    "attention_norm": SequenceParallel(),
    "attention": PrepareModuleInput(
        input_layouts=(BY_SEQUENCE, None, None), desired_input_layouts=(REPLICATED, None, None)
    ),
    **{f"attention.{name}": ColwiseParallel(use_local_output=False) for name in ("query", "key", "value")},
    "attention.out": RowwiseParallel(output_layouts=BY_SEQUENCE),
    "forward_norm": SequenceParallel(),
    "feed_forward": PrepareModuleInput(input_layouts=(BY_SEQUENCE,), desired_input_layouts=(REPLICATED,)),
    **{f"feed_forward.{name}": ColwiseParallel(use_local_output=False) for name in ("gate", "up")},
    "feed_forward.down": RowwiseParallel(output_layouts=BY_SEQUENCE),
}


def tensor_parallel(model: Transformer, mesh: DeviceMesh) -> None:
    """Cut heads, hidden features and the vocabulary over a mesh of one dimension."""
    for block in model.blocks.values():
        parallelize_module(block, mesh, BLOCK)
    ends = {
        "embedding": RowwiseParallel(input_layouts=REPLICATED, output_layouts=BY_SEQUENCE),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=BY_SEQUENCE, output_layouts=Shard(-1)),
    }
    parallelize_module(model, mesh, {name: style for name, style in ends.items() if getattr(model, name) is not None})
    model.cos, model.sin = (distribute_tensor(one, mesh, [REPLICATED]) for one in (model.cos, model.sin))


def parallel_loss(logits: Tensor, labels: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return the loss of logits whose vocabulary is cut: no rank ever has a whole row."""
    cut = DTensor.from_local(logits, mesh, [Shard(-1)], run_check=False)
    whole = distribute_tensor(labels, mesh, [REPLICATED])
    return loss_of(cut, whole).full_tensor().clone()  # pipelines detach it in place, which a view does not allow


def checkpoint_blocks(model: Transformer, *, has_one_backward: bool = True) -> None:
    """Keep the outputs of attention, and compute the rest of each block again in the backward.

    Zero-bubble schedules go twice through a graph, which PyTorch does not allow for selective checkpointing: there the
    whole block is computed again.
    """
    options = {"context_fn": checkpointing(save=[flash_attention])} if has_one_backward else {}
    for block in model.blocks.values():
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **options)


def fully_sharded(model: Transformer, mesh: DeviceMesh) -> None:
    """Shard the parameters of each block, then the rest, over the data-parallel dimension."""
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def stage_of(model: Transformer, index: int, count: int) -> Transformer:
    """Keep the blocks of one stage of a pipeline; the first has the embedding, the last the norm and the head."""
    each = len(model.blocks) // count
    kept = {str(number) for number in range(index * each, (index + 1) * each)}
    model.blocks = nn.ModuleDict({name: block for name, block in model.blocks.items() if name in kept})
    if index > 0:
        model.embedding = None
    if index < count - 1:
        model.norm = model.head = None
    return model
