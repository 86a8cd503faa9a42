"""Compiled calls with DTensors whose sizes change: nothing of the first sizes stays in the graph.

The process group is torch's fake one, whose collectives do nothing: shapes are compared, and not values.
"""

import pytest
import torch
from sharding import sharded_ops as ops
from torch import distributed

from custom_autograd.torch_private.verification import GraphCounter

pytestmark = [
    pytest.mark.skipif(not distributed.is_available(), reason="torch is built without distributed"),
    pytest.mark.usefixtures("fresh_compiler"),
]
SIZES = (20, 24, 28)  # the size of a slice changes too: torch guards on nothing else


@pytest.fixture
def mesh():
    """A mesh of four ranks, of which this process is the first, and the others do not exist."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield init_device_mesh("cpu", (4,))
    distributed.destroy_process_group()


def whole(*shape):
    return torch.rand(*shape, dtype=torch.float64)


CALLS = {
    "a dimension that is not cut": (ops.rms_norm, lambda n: [(whole(8, n), 0), (whole(n), None)]),
    "a dimension that is cut": (ops.rms_norm, lambda n: [(whole(n, 8), 0), (whole(8), None)]),
    "a gathered dimension": (ops.rms_norm, lambda n: [(whole(8, n), 1), (whole(n), None)]),
    "a sum over ranks": (ops.total, lambda n: [(whole(8, n), 0)]),
    "a dimension that a rule cuts": (
        ops.attention,
        lambda n: [(whole(2, 3, 4), None), (whole(2, n, 4), 1), (whole(2, n, 3), 1)],
    ),
}


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_shapes_follow_the_sizes(name, is_recorded, mesh):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    op, tensors = CALLS[name]
    counter = GraphCounter()
    compiled = torch.compile(lambda *given: op(*given), backend=counter, fullgraph=True)
    for size in SIZES:
        wholes = [tensor.requires_grad_(is_recorded) for tensor, _ in tensors(size)]
        placed = [
            distribute_tensor(tensor.detach(), mesh, [Replicate() if dim is None else Shard(dim)])
            for tensor, (_, dim) in zip(wholes, tensors(size), strict=True)
        ]
        placed = [tensor.requires_grad_(is_recorded) for tensor in placed]
        expected, found = op(*wholes), compiled(*placed)
        assert expected.shape == found.shape
        if is_recorded:
            grads = torch.autograd.grad(found.sum(), placed)
            assert [tensor.shape for tensor in wholes] == [grad.shape for grad in grads]

    assert counter.graphs <= 2
