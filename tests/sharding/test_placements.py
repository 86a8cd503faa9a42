"""Outputs and gradients of DTensors, however they are placed, are those of whole tensors; four ranks are played."""

import itertools

import pytest
import torch
from sharding import sharded_ops as ops
from sharding.any_placement import assert_placements_do_not_matter
from torch.testing import assert_close

from custom_autograd import Sample
from custom_autograd.core.errors import KernelError
from custom_autograd.sharding import strategies
from custom_autograd.torch_private import collectives
from slow_cases import slow_but_every

pytestmark = pytest.mark.skipif(collectives.why_not() is not None, reason=f"{collectives.why_not()}")


def rand(*shape):
    with collectives.one():  # the same on all ranks
        return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


CALLS = {
    "rows": (ops.rms_norm, Sample(rand(8, 4), rand(4))),
    "uneven rows": (ops.rms_norm, Sample(rand(7, 4), rand(4))),
    "groups of dimensions": (ops.rms_norm, Sample(rand(5, 3, 6), rand(6))),
    "sums": (ops.total, Sample(rand(8, 3))),
    "products": (ops.heads, Sample(rand(8, 3), rand(4, 3))),
    "products that ranks do not divide": (ops.heads, Sample(rand(6, 3), rand(3, 3))),
    "tensors by keyword": (ops.keyword, Sample(rand(8, 4), weight=rand(4))),
    "no tensor by keyword": (ops.keyword, Sample(rand(8, 4))),
    "an optional tensor": (ops.optional, Sample(rand(8, 4), rand(4))),
    "no optional tensor": (ops.optional, Sample(rand(8, 4))),
    "lists": (ops.products, Sample([rand(8, 4), rand(5, 4)], rand(4))),
    "a dataclass": (ops.dense, Sample(ops.Layer(rand(4, 8), rand(4)), rand(6, 8))),
    "a dataclass without a tensor": (ops.dense, Sample(ops.Layer(rand(4, 8), None), rand(6, 8))),
    "a dict": (ops.parts, Sample({"a": rand(4, 8), "b": rand(4, 8)}, rand(6, 8))),
    "written tensors": (ops.add_, Sample(rand(8, 4), rand(8, 4))),
    "positions": (ops.gathered, Sample(rand(8, 4), torch.tensor([1, 2, 3, 4, 0, 7]))),
    "a pointwise op": (ops.pointwise, Sample(rand(8, 4), rand(4))),
    "a reference and no line": (ops.by_reference, Sample(rand(8, 4), rand(4))),
    "a reference and a constant": (ops.constant_weight, Sample(rand(8, 4), rand(8, 4))),
    "keys that a rule combines": (ops.attention, Sample(rand(2, 3, 4), rand(2, 8, 4), rand(2, 8, 3))),
    "classes that a rule combines": (ops.cross_entropy, Sample(rand(6, 8), torch.tensor([0, 1, 7, 2, 3, 5]))),
    "offsets": (ops.dropout, Sample(rand(8, 3), 3)),
    "uneven offsets": (ops.dropout, Sample(rand(7, 3), 3)),
    "halos": (ops.smooth, Sample(rand(8, 3))),
}


@pytest.mark.parametrize("case", slow_but_every(5, itertools.product(CALLS, [(4,), (2, 2)])), ids=str)
def test_values_and_gradients_do_not_depend_on_placements(case):
    name, sizes = case
    assert_placements_do_not_matter(*CALLS[name], sizes)


@pytest.fixture
def mesh():
    with collectives.played(4) as found:
        yield found


def placed(tensor, mesh, *placements):
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, mesh, placements)


def shards():
    from torch.distributed.tensor import Partial, Replicate, Shard

    return Shard, Replicate(), Partial()


def test_outputs_stay_sharded(mesh):
    shard, replicate, partial = shards()
    x = placed(rand(8, 4), mesh, shard(0)).requires_grad_()
    weight = placed(rand(4), mesh, replicate).requires_grad_()
    y = ops.rms_norm(x, weight)
    y.sum().backward()

    assert (shard(0),) == y.placements == x.grad.placements
    assert (partial,) == ops.total(x.detach()).placements


def test_a_sharded_dimension_that_a_rule_combines_is_not_gathered(mesh):
    shard, replicate, _ = shards()
    q = placed(rand(2, 3, 4), mesh, replicate)
    k, v = placed(rand(2, 8, 4), mesh, shard(1)), placed(rand(2, 8, 3), mesh, shard(1))
    from torch.distributed.tensor.debug import CommDebugMode

    with CommDebugMode() as mode:
        out = ops.attention(q, k, v)

    assert (replicate,) == out.placements
    assert 2 == mode.get_total_counts()  # the outputs and their weights, and neither keys nor values


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (("no", False, [1]), ("sum", False, [1]), ((8,), torch.float64)),
        (("no", False, [1]), ("no", True, [1]), ((8, 4), torch.float32)),
        (("no", False, [1]), ("no", False, [2]), ((16, 4), torch.float64)),
    ],
    ids=["str", "bool", "int[]"],
)
def test_a_second_call_with_another_argument_has_its_own_placements(mesh, first, second, expected):
    """`register_sharding` of torch leaves these arguments out of the key of its cache."""
    shard, *_ = shards()
    whole = rand(8, 4)
    x = placed(whole, mesh, shard(0))
    with collectives.one():
        values = [ops.reduce(whole, *arguments) for arguments in (first, second)]
    found = [ops.reduce(x, *arguments) for arguments in (first, second)]

    assert expected == (tuple(found[1].shape), found[1].dtype)
    wholes = [collectives.whole(one) for one in found]
    with collectives.one():
        torch.testing.assert_close(wholes, values)


def test_a_pointwise_op_has_no_placements_of_another_argument(mesh):
    shard, *_ = shards()
    x = placed(rand(8, 4), mesh, shard(0))

    assert [torch.float64, torch.float32] == [ops.pointwise(x, x, mode).dtype for mode in ("double", "float")]


def test_a_float_is_not_looked_at_again(mesh, monkeypatch):
    """Its values would fill the cache of a training loop."""
    shard, replicate, _ = shards()
    x, weight = placed(rand(8, 4), mesh, shard(0)), placed(rand(4), mesh, replicate)
    ops.rms_norm(x, weight, 0.25)
    monkeypatch.setattr(strategies, "_flat", None)  # what would be called
    whole = collectives.whole(ops.rms_norm(x, weight, 0.5))

    with collectives.one():
        torch.testing.assert_close(whole, ops.rms_norm(rand(8, 4), rand(4), 0.5))


def test_replicated_tensors_need_no_line(mesh):
    _, replicate, _ = shards()
    x = placed(rand(8, 4), mesh, replicate).requires_grad_()
    y = ops.opaque(x)
    y.sum().backward()

    found = [collectives.whole(y), collectives.whole(x.grad)]
    with collectives.one():
        torch.testing.assert_close(found, [2 * rand(8, 4), torch.full((8, 4), 2.0, dtype=torch.float64)])


def test_inference_mode(mesh):
    shard, replicate, _ = shards()
    with torch.inference_mode():
        found = ops.rms_norm(placed(rand(8, 4), mesh, shard(0)), placed(rand(4), mesh, replicate))

    assert (shard(0),) == found.placements


def test_user_rules_of_torch_stay(mesh):
    from torch.distributed.tensor.experimental import register_sharding

    from custom_autograd import custom_op

    shard, replicate, _ = shards()
    op = custom_op("sharding_tests::own", lambda x: x.exp(), schema="(Tensor x) -> Tensor", reference=True)
    register_sharding(op.overload)(lambda x: [([shard(1)], [shard(1)]), ([replicate], [replicate])])

    assert (shard(1),) == op(placed(rand(8, 4), mesh, shard(1))).placements


@pytest.mark.parametrize("placements", ["R R R", "S1 R S1", "S0 S0 R", "R R S0"])
@pytest.mark.parametrize("name", ["total", "attention"])
def test_second_derivatives_are_those_of_whole_tensors(name, placements, mesh):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    kinds = {"R": Replicate(), "S0": Shard(0), "S1": Shard(1)}
    op = getattr(ops, name)
    tensors = {"total": [rand(8, 3)], "attention": [rand(2, 3, 4), rand(2, 8, 4), rand(2, 8, 3)]}[name]

    def second(inputs):
        loss = op(*inputs).pow(3).sum()
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in first), inputs)

    with collectives.one():
        expected = second([tensor.clone().requires_grad_() for tensor in tensors])
    pairs = zip(tensors, placements.split(), strict=False)
    found = second([distribute_tensor(tensor, mesh, [kinds[kind]]).requires_grad_() for tensor, kind in pairs])

    with collectives.one():
        for one, other in zip(found, expected, strict=True):
            assert_close(collectives.whole(one), other)


def test_replicated_tensors_stay_replicated_whether_gradients_are_recorded_or_not(mesh):
    from torch.distributed.tensor import Replicate, distribute_tensor

    x, weight = (distribute_tensor(tensor, mesh, [Replicate()]) for tensor in (rand(8, 4), rand(4)))

    assert (Replicate(),) == ops.rms_norm(x, weight).placements
    assert (Replicate(),) == ops.rms_norm(x.requires_grad_(), weight).placements


def test_tensors_on_two_meshes_are_refused(mesh):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    other = init_device_mesh("cpu", (2, 2))
    x = distribute_tensor(rand(8, 4), mesh, [Replicate()]).requires_grad_()
    weight = distribute_tensor(rand(4), other, [Replicate(), Replicate()])

    with pytest.raises(KernelError, match="'x' and 'weight' are on two meshes"):
        ops.rms_norm(x, weight)
