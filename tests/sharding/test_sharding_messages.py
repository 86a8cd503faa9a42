"""What is said of ops that cannot be sharded as asked, and of rules that do not fit."""

import pytest
import torch
from messages.shown import message
from sharding import sharded_ops as ops
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.core.errors import RegistrationError
from custom_autograd.torch_private import collectives

needs_played_ranks = pytest.mark.skipif(collectives.why_not() is not None, reason=f"{collectives.why_not()}")


@custom_op("sharding_messages::op", shapes="x: n [d (2 h)] -> output: n")
def op(x: Tensor) -> Tensor:
    return x.sum((1, 2))


def test_an_op_without_a_line_has_no_dimension_to_cut():
    bare = custom_op("sharding_messages::bare", lambda x: x, schema="(Tensor x) -> Tensor")
    found = message(lambda: bare.register_sharding("n", lambda output: output), RegistrationError)

    assert "register_sharding cuts a dimension of the op's line, and there is none" in found


def test_a_dimension_that_is_cut_without_a_rule():
    found = message(lambda: op.register_sharding("n", lambda output: output), RegistrationError)

    assert "'n' is cut without a rule: the line has it without brackets" in found


def test_a_dimension_that_the_line_does_not_have():
    found = message(lambda: op.register_sharding("e", lambda output: output), RegistrationError)

    assert "the line has no dimension 'e'" in found


def test_a_factor_of_a_product():
    found = message(lambda: op.register_sharding("h", lambda output: output), RegistrationError)

    assert "'h' cannot be cut: the line also has (2 h)" in found


def test_a_parameter_that_names_nothing():
    found = message(lambda: op.register_sharding("d", lambda out: out), RegistrationError)

    assert "the sharding rule has a parameter 'out' that names nothing" in found


def test_where_placements_come_from():
    assert ops.rms_norm.capabilities()["sharding"].startswith("derived from the line of shapes (sharded_ops.py:")
    assert "; 'n' registered (sharded_ops.py:" in ops.attention.capabilities()["sharding"]
    assert ops.by_reference.capabilities()["sharding"].startswith("derived from the reference (")
    assert "derived: pointwise, as its output is sharded" == ops.pointwise.capabilities()["sharding"]
    assert "missing: shapes=, register_shapes" == ops.opaque.capabilities()["sharding"]


@needs_played_ranks
def test_a_written_tensor_is_not_moved():
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    inside = custom_op(
        "sharding_messages::norm_",
        lambda x: None,
        schema="(Tensor(a!) x) -> ()",
        mutates_args="x",
        shapes="x: n [d] ->",
    )
    with collectives.played(4) as mesh:
        x = distribute_tensor(torch.rand(8, 4), mesh, [Shard(1)])
        found = message(lambda: inside(x), RuntimeError)
        inside(distribute_tensor(torch.rand(8, 4), mesh, [Replicate()]))

    assert "the op writes to 'x', whose placements it cannot keep" in found
    assert "redistribute 'x' before the call" in found


@needs_played_ranks
@pytest.mark.parametrize("is_compiled", [False, True])
def test_an_op_that_nothing_is_known_of_names_the_line(is_compiled):
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.compiler.reset()
    call = torch.compile(ops.opaque, backend="eager", fullgraph=True) if is_compiled else ops.opaque
    with collectives.played(4) as mesh:
        x = distribute_tensor(torch.rand(8, 4), mesh, [Shard(0)])
        with pytest.raises(RuntimeError) as raised:
            call(x)
        found = "\n".join((str(raised.value), *getattr(raised.value, "__notes__", ())))

    assert "custom_op(..., shapes=...) or register_shapes" in found


@needs_played_ranks
def test_a_hidden_output_that_a_rule_leaves_out_is_not_a_number():
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    with collectives.played(4) as mesh:
        q, k, v = torch.rand(2, 3, 4), torch.rand(2, 8, 4), torch.rand(2, 8, 3)
        placed = [
            distribute_tensor(tensor, mesh, [at]) for tensor, at in ((q, Replicate()), (k, Shard(1)), (v, Shard(1)))
        ]
        _, lse = ops.attention.overload(*placed)

        assert bool(collectives.whole(lse).isnan().all())


@needs_played_ranks
@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_rule_that_returns_another_size_is_refused_in_the_call(is_recorded):
    from torch.distributed.tensor import Shard, distribute_tensor

    sums = custom_op(
        f"sharding_messages::sums_{is_recorded}",
        lambda x: x.sum(1),
        schema="(Tensor x) -> Tensor total",
        shapes="x: n [d] -> total: n",
        reference=True,
    )
    sums.register_sharding("d", lambda total, gather: gather(total))
    with collectives.played(4) as mesh:
        x = distribute_tensor(torch.rand(6, 8), mesh, [Shard(1)]).requires_grad_(is_recorded)
        found = message(lambda: sums(x), RuntimeError)

    assert "the sharding rule returns 'total' with the wrong size" in found
    assert "(6,), the size on this rank if 'd' is cut" in found
    assert "(4, 6)" in found
