"""Faults that show in a backward of one point, for negative integers, after another call, and without a device."""

import numpy as np
import torch
from torch import Tensor

from custom_autograd import Sample, check, custom_op
from custom_autograd.kernels import numpy_kernel
from custom_autograd.verification.checks.explore import Explore
from custom_autograd.verification.harness.pace import Pace
from custom_autograd.verification.harness.targets import target_of

NAMESPACE = "faults_ranges"


def result_of(op, samples, name):
    chosen = Explore(seconds=2.0) if name == "explore" else name
    return check(op, samples, checks=[chosen], isolated=False).results[0]


@custom_op(f"{NAMESPACE}::grid")
def grid(x: Tensor, size: int) -> Tensor:
    step = 1 / (size - 1) if size > 1 else 0.0
    return x[:, None] * torch.arange(size, device=x.device) * step


@grid.register_backward
def _(grad, size):
    step = 1 / (size - 1)
    return grad @ torch.arange(size, dtype=grad.dtype, device=grad.device) * step


def test_crash_in_the_backward_of_one_point_is_found_without_a_reference():
    result = result_of(grid, lambda make: [Sample(make(3), 4)], "explore")

    assert "failed" == result.status
    assert "size=1: the backward raises ZeroDivisionError" in result.message


@custom_op(f"{NAMESPACE}::buckets", reference=True)
def buckets(ids: Tensor, count: int) -> Tensor:
    return ids * 31 % count


@buckets.register_kernel("cpu")
@numpy_kernel
def _(ids, count):
    return np.fmod(ids * 31, count)


def test_remainder_of_negative_integers_is_found():
    result = result_of(buckets, [Sample(torch.tensor([5, 3, 100, 7]), 17)], "reference")

    assert "negative integers, in tensors" in result.message


LAST = {"seed": 0}


@custom_op(f"{NAMESPACE}::dropped", tags=torch.Tag.nondeterministic_seeded)
def dropped(x: Tensor) -> Tensor:
    LAST["seed"] = int(torch.randint(2**31, ()))
    return x * mask(x, LAST["seed"])


def mask(x: Tensor, seed: int) -> Tensor:
    return torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < 0.5


dropped.register_backward(lambda grad: grad * mask(grad, LAST["seed"]))


def test_seed_of_the_last_call_is_found():
    result = result_of(dropped, lambda make: [Sample(make(4, 6))], "reuse")

    assert "with another call between forward and backward: gradient of 'x'" in result.message


@custom_op(f"{NAMESPACE}::shifted", reference=True)
def shifted(x: Tensor, count: int) -> Tensor:
    return x[:, torch.arange(count) % x.shape[1]]


@shifted.register_backward
def _(grad, meta, count):
    return grad.new_zeros(meta.x.shape).index_add(1, torch.arange(count) % meta.x.shape[1], grad)


def test_index_on_the_cpu_is_found_without_a_device():
    result = result_of(shifted, lambda make: [Sample(make(3, 4), 6)], "fake")

    assert "on another device than the CPU a rule raises" in result.message


@custom_op(f"{NAMESPACE}::bins", reference=True)
def bins(edges: Tensor, x: Tensor) -> Tensor:
    return torch.searchsorted(edges, x, right=True)


@bins.register_kernel("cpu")
@numpy_kernel
def _(edges, x):
    return np.searchsorted(edges, x, side="right").reshape(x.shape)


def test_edges_of_which_two_are_equal_stay_in_order():
    edges, x = torch.tensor([-0.5, 0.0, 0.0, 0.75]), torch.tensor([-0.5, 0.2, 2.0])

    for name in ("special_values", "sizes", "explore"):
        result = result_of(bins, [Sample(edges, x)], name)
        assert "failed" != result.status, result.message


def test_call_whose_results_would_be_large_is_left_out():
    @custom_op(f"{NAMESPACE}::square", reference=True)
    def square(x: Tensor, length: int) -> Tensor:
        return x[:, None, None].expand(-1, length, length).contiguous()

    pace = Pace(target_of(square), Sample(torch.ones(2), 4))

    assert pace.why_not_times(1025, Sample(torch.ones(1025), 1025)) is not None
    assert pace.why_not_times(1025, Sample(torch.ones(2), 1025)) is None
