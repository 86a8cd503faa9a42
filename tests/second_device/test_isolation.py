"""A process with an out-of-tree device is not forked: its checks run in it."""

import os

import torch

from custom_autograd import Sample, check
from custom_autograd.values.random_state import accelerators_in_use, synchronize_accelerators
from custom_autograd.verification.processes.process import is_sound


def test_the_device_is_in_use_and_can_be_waited_for():
    assert [("second", torch.second)] == accelerators_in_use()
    synchronize_accelerators()


def test_a_process_with_the_device_is_not_forked():
    seen = set()

    def doubled(x):
        seen.add(os.getpid())
        return x * 2

    report = check(doubled, [Sample(torch.ones(3, device="second"))], checks="schema")

    assert not is_sound()
    assert report.ok
    assert {os.getpid()} == seen
