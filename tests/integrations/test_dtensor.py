"""DTensor: an op needs a sharding rule, and then its derivatives are DTensors too, zeros included."""

import pytest
import torch
from messages.shown import message
from torch import Tensor, distributed

from custom_autograd import custom_op

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch is built without distributed")


KINDS = []


def declare(name, **options):
    @custom_op(f"sharded::{name}", outputs=("double", "square"), reference=True, **options)
    def op(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * x

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
    assert "register_sharding(torch.ops.sharded.unsharded.default)" in notes


def test_values_and_placements(x, sharded):
    double, square = sharded(x)

    assert x.placements == double.placements == square.placements
    assert torch.equal(x.to_local() ** 2, square.to_local())


@pytest.mark.parametrize("used", [0, 1])
def test_an_unused_output_has_a_gradient_that_is_a_dtensor(x, sharded, used):
    sharded(x)[used].sum().backward()
    local = x.detach().to_local()

    assert [("DTensor", "DTensor")] == KINDS
    assert x.placements == x.grad.placements
    torch.testing.assert_close(2 * local if used else torch.full_like(local, 2.0), x.grad.to_local())


def test_plain_tensors_are_not_mixed_in(x, sharded):
    op = custom_op("sharded::plus", lambda x, y: x + y, schema="(Tensor x, Tensor y) -> Tensor", replace=True)

    assert "mixed torch.Tensor and DTensor" in message(lambda: op(x, torch.ones(4, 3)), RuntimeError)
