"""The peak of a machine: counted from the fastest product, by a clock that the tests set."""

import itertools

import torch
from tables import each

from custom_autograd.benchmarking import memory


def test_the_fastest_product_counts():
    """The products take 4, 3, 2, 3 and 4 s by this clock."""
    times = iter([0, 4, 10, 13, 20, 22, 30, 33, 40, 44])
    found = memory.measure_peak("cpu", torch.float32, clock=lambda: float(next(times)))

    assert 2 * 1024**3 / 2 == found.flops_per_second
    assert "1.1 GFLOP/s on cpu, the best of 5 products of 1024 x 1024 float32 matrices" == found.text


def test_a_product_ends_when_the_device_is_done():
    done = []
    memory.measure_peak("cpu", torch.float32, finish=lambda: done.append(True), clock=itertools.count().__next__)

    assert 1 + memory.ROUNDS == len(done)


@each(("dtype", "expected"), [(torch.float64, torch.float64), (torch.int64, torch.float32)])
def test_dtypes_that_are_not_multiplied_are_compared_with_float32(dtype, expected):
    assert expected == memory.measure_peak("cpu", dtype).dtype
