"""DTensor: an op needs a sharding rule, and then its derivatives are DTensors too, zeros included."""

import pytest
import torch
from messages.shown import message
from serialisation.processes import run
from torch import Tensor, distributed

from custom_autograd import custom_op

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch is built without distributed")


KINDS = []


def declare(name, **options):
    @custom_op(f"sharded::{name}", outputs=("double", "square"), **options)
    def op(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * x

    op.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))

    @op.register_backward
    def _(grad_double, grad_square, x):
        KINDS.append((type(grad_double).__name__, type(grad_square).__name__))
        return 2 * grad_double + 2 * x * grad_square

    return op


unsharded, by_rows = declare("unsharded"), declare("by_rows")


@pytest.fixture(scope="module")
def mesh():
    """A mesh of this process alone."""
    from torch.distributed.device_mesh import init_device_mesh

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.fixture
def x(mesh):
    from torch.distributed.tensor import Shard, distribute_tensor

    KINDS.clear()
    return distribute_tensor(torch.rand(4, 3, dtype=torch.float64), mesh, [Shard(0)]).requires_grad_()


@pytest.fixture(scope="module")
def sharded():
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    @register_sharding(by_rows.overload)
    def _(x):
        return [([Shard(0), Shard(0)], [Shard(0)]), ([Replicate(), Replicate()], [Replicate()])]

    return by_rows


def test_an_op_without_a_sharding_rule_says_so(x):
    with pytest.raises(NotImplementedError, match="does not have a sharding strategy") as caught:
        unsharded(x)
    notes = "".join(getattr(caught.value, "__notes__", [str(caught.value.__cause__)]))

    assert "sharded::unsharded, declared at test_dtensor.py:" in notes
    assert "custom_op(..., shapes=...) or register_shapes" in notes
    assert "register_sharding(torch.ops.sharded.unsharded.default)" in notes


def test_values_and_placements(x, sharded):
    double, square = sharded(x)

    assert x.placements == double.placements == square.placements
    assert torch.equal(x.to_local() ** 2, square.to_local())


@pytest.mark.parametrize("used", [0, 1])
def test_an_unused_output_has_a_gradient_that_is_a_dtensor(x, sharded, used):
    sharded(x)[used].sum().backward()
    whole = x.detach().full_tensor()

    assert [("DTensor", "DTensor")] == KINDS
    torch.testing.assert_close(2 * whole if used else torch.full_like(whole, 2.0), x.grad.full_tensor())


@custom_op("sharded::mul", tags=torch.Tag.pointwise)
def mul(x: Tensor, y: Tensor, s: float = 1.0) -> Tensor:
    return x * y * s


@mul.register_fake
def _(x, y, s=1.0):
    return torch.empty(torch.broadcast_shapes(x.shape, y.shape), dtype=x.dtype)


@mul.register_backward
def _(grad, x, y, s):
    return {"x": grad * y * s, "y": (grad * x * s).sum(0, keepdim=True)}


def test_a_pointwise_op_needs_no_sharding_rule(x):
    from torch.distributed.tensor import Replicate, distribute_tensor

    y = distribute_tensor(torch.rand(1, 3, dtype=torch.float64), x.device_mesh, [Replicate()]).requires_grad_()
    found = mul(x, y, 2.0)
    found.sum().backward()

    assert x.placements == found.placements
    torch.testing.assert_close(2 * x.to_local() * y.to_local(), found.to_local())
    torch.testing.assert_close((2 * y.to_local()).expand(4, 3), x.grad.to_local())
    torch.testing.assert_close(2 * x.to_local().sum(0, keepdim=True), y.grad.full_tensor())


RANKS = """
import os
import sys
import torch
from torch import distributed
from custom_autograd import custom_op

op = custom_op("ranks::pair", lambda x, y: (x * y, x + y), schema="(Tensor x, Tensor y) -> (Tensor, Tensor)",
               tags=torch.Tag.pointwise)
op.register_fake(lambda x, y: (torch.empty_like(x), torch.empty_like(x)))
op.register_backward(lambda grad_output_0, grad_output_1, x, y: {
    "x": grad_output_0 * y + grad_output_1, "y": (grad_output_0 * x + grad_output_1).sum(0)})

def work(rank, path):
    distributed.init_process_group("gloo", store=distributed.FileStore(path, 2), rank=rank, world_size=2)
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    mesh = init_device_mesh("cpu", (2,))
    whole, row = torch.arange(15.0).reshape(5, 3), torch.tensor([1.0, 2.0, 3.0])
    for placement in (Shard(0), Shard(1), Replicate()):
        x = distribute_tensor(whole, mesh, [placement]).requires_grad_()
        y = distribute_tensor(row, mesh, [Shard(0) if placement == Shard(1) else Replicate()]).requires_grad_()
        product, _ = op(x, y)
        assert (placement,) == product.placements
        product.sum().backward()
        torch.testing.assert_close(whole * row, product.full_tensor())
        torch.testing.assert_close(row.expand(5, 3), x.grad.full_tensor())
        torch.testing.assert_close(whole.sum(0), y.grad.full_tensor())
    distributed.destroy_process_group()
    # NOTE: a thread of Gloo that drops a tensor while Python ends aborts the process, so Python does not end it
    os._exit(0)

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, ("store",), 2)
    print("done")
"""


@pytest.mark.slow
@pytest.mark.multi_rank
def test_two_ranks_shard_a_pointwise_op(tmp_path):
    assert "done\n" == run(RANKS, folder=tmp_path, is_script=True)


def test_plain_tensors_are_not_mixed_in(x, sharded):
    op = custom_op("sharded::plus", lambda x, y: x + y, schema="(Tensor x, Tensor y) -> Tensor", replace=True)

    assert "mixed torch.Tensor and DTensor" in message(lambda: op(x, torch.ones(4, 3)), RuntimeError)
