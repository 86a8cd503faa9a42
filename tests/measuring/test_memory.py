"""The peak of what PyTorch allocates while a function runs."""

import torch

from custom_autograd.benchmarking.memory import peak_allocation


def test_the_peak_is_what_is_alive_at_once():
    def work():
        first = torch.ones(2**18)  # 1 MiB
        second = first + 1
        del first
        return second + 1

    assert 0 <= peak_allocation(work) - 2 * 2**20 < 1000  # torch 2.11 has a few bytes for numbers


def test_the_same_run_has_the_same_peak():
    weight = torch.ones(64, 64, requires_grad=True)

    def work():
        return torch.autograd.grad((weight @ weight).tanh().sum(), weight)

    assert peak_allocation(work) == peak_allocation(work) > 0
