"""Ops of the gallery with DTensors cut along dimensions for which rules are registered, on four ranks that are played.

Values and gradients are those of whole tensors, and what a rule cuts is not gathered.
"""

import pytest
import torch
from sharding.any_placement import assert_placements_do_not_matter

from custom_autograd import Sample
from custom_autograd.torch_private import collectives
from gallery_values import load
from slow_cases import slow_but_every

pytestmark = pytest.mark.skipif(collectives.why_not() is not None, reason=f"{collectives.why_not()}")

attention = load("flash_attention").flash_attention
dropout = load("dropout").dropout
fft_conv = load("fft_conv").fft_conv
cross_entropy = load("softmax_cross_entropy_ranks").softmax_cross_entropy

SEED = torch.tensor(0x243F6A8885A308D3)
LABELS = torch.tensor([0, 7, -100, 4, 5])


def rand(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def heads(queries, keys, *bias, **options):
    """Two heads that share one head of keys."""
    return Sample(rand(1, 2, queries, 4), rand(1, 1, keys, 4), rand(1, 1, keys, 3), *bias, **options)


def hidden_keys():
    """The third query sees none of the last keys, and the second none at all."""
    bias = torch.zeros(3, 8, dtype=torch.float64)
    bias[2, 4:] = bias[1] = -torch.inf
    return bias


CALLS = {
    "attention": (attention, heads(3, 8)),
    "attention with a bias of each key": (attention, heads(3, 8, rand(2, 1, 8), scale=0.3)),
    "attention with a bias of each query": (attention, heads(3, 8, rand(3, 1))),
    "attention with one bias": (attention, heads(3, 8, rand())),
    "attention to hidden keys": (attention, heads(3, 8, hidden_keys())),
    "causal attention": (attention, heads(4, 8, causal=True)),
    "dropout of groups that ranks cut": (dropout, Sample(rand(8, 3, 173), 0.25, SEED)),
    "dropout with an offset": (dropout, Sample(rand(8, 5), 0.5, SEED, 507)),
    "dropout of uneven rows": (dropout, Sample(rand(7, 5), 0.5, SEED)),
    "dropout of one number": (dropout, Sample(rand(), 0.5, SEED)),
    "a convolution": (fft_conv, Sample(rand(2, 4, 8), rand(4, 8), rand(4))),
    **{
        f"cross entropy, {reduction}": (cross_entropy, Sample(rand(5, 8), LABELS, reduction=reduction))
        for reduction in ("mean", "sum", "none")
    },
}


@pytest.mark.parametrize("sizes", [(4,), pytest.param((2, 2), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("name", slow_but_every(4, CALLS))
def test_values_and_gradients_do_not_depend_on_placements(name, sizes):
    assert_placements_do_not_matter(*CALLS[name], sizes)


CUT = {
    "attention": (attention, heads(3, 8), (None, 2, 2), 2),
    "attention with a bias of each key": (attention, heads(3, 8, rand(2, 1, 8)), (None, 2, 2, 2), 2),
    "dropout": (dropout, Sample(rand(8, 3, 173), 0.25, SEED), (0, None), 0),
    "cross entropy": (cross_entropy, Sample(rand(5, 8), LABELS), (1, None), 1),
}


def placed(tensor, mesh, dim):
    """A DTensor cut along a dimension, or replicated."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    placements = [Replicate() if dim is None else Shard(dim)]
    local = distribute_tensor(tensor.detach(), mesh, placements).to_local()
    found = DTensor.from_local(collectives.on_all_ranks(local, 4), mesh, placements, run_check=False)
    return found.requires_grad_(tensor.is_floating_point())


@pytest.mark.parametrize("name", CUT)
def test_what_a_rule_cuts_is_right_and_not_gathered(name):
    """`sent` is how often ranks send something forward: what is combined, and no input."""
    from torch.distributed.tensor.debug import CommDebugMode

    op, sample, dims, sent = CUT[name]
    leaves = [leaf.tensor.detach().requires_grad_(leaf.tensor.is_floating_point()) for leaf in sample.leaves()]
    expected = op(*sample.with_tensors(leaves).args, **sample.kwargs)
    cotangent = rand(*expected.shape)
    expected_grads = torch.autograd.grad(expected, [one for one in leaves if one.requires_grad], cotangent)
    with collectives.played(4) as mesh:
        tensors = [placed(one, mesh, dim) for one, dim in zip(leaves, dims, strict=True)]
        with CommDebugMode() as mode:
            found = op(*sample.with_tensors(tensors).args, **sample.kwargs)
        same = placed(cotangent, mesh, None).redistribute(placements=found.placements)
        grads = torch.autograd.grad(found, [one for one in tensors if one.requires_grad], same)
        values = [collectives.whole(one) for one in (found, *grads)]

    torch.testing.assert_close(values, [expected.detach(), *expected_grads])
    assert sent == mode.get_total_counts()
