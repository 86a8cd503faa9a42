"""saving under FSDP2: the gradients of two ranks are those of one process with the same policy."""

import pytest
from serialisation.processes import run
from torch import distributed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.multi_rank,
    pytest.mark.skipif(not distributed.is_available(), reason="torch is built without distributed"),
]

RANKS = """
import os
import sys
import torch
from torch import Tensor, distributed
from torch.testing import assert_close
from custom_autograd import custom_op, saving
from custom_autograd.graph import cast, offload

@custom_op("sharded_saving::gate", reference=True)
def gate(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)

@gate.register_backward(saving={"x": offload()})
def _(grad, x):
    y = torch.sigmoid(x)
    return grad * y * (1 + x * (1 - y))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = gate(layer(x))
        return x

def gradients(model, x):
    with saving(cast(torch.bfloat16)):
        loss = model(x).square().mean()
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]

def work(rank, path):
    distributed.init_process_group("gloo", store=distributed.FileStore(path, 2), rank=rank, world_size=2)
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh
    torch.manual_seed(0)
    whole, x = Model(), torch.randn(4, 8)
    torch.manual_seed(0)
    model = Model()
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for expected, found in zip(gradients(whole, x), gradients(model, x), strict=True):
        assert_close(expected, found.full_tensor(), rtol=1e-5, atol=1e-6)
    if rank == 0:
        print("gradients agree", flush=True)
    distributed.destroy_process_group()
    # NOTE: a thread of Gloo that drops a tensor while Python ends aborts the process, so Python does not end it
    os._exit(0)

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, (sys.argv[1],), nprocs=2)
"""


def test_gradients_of_two_ranks(tmp_path):
    assert "gradients agree" in run(RANKS, tmp_path / "store", folder=tmp_path, is_script=True)
