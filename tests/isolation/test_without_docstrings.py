"""`python -OO` leaves out docstrings and asserts: ops are declared and checked all the same."""

import subprocess
import sys

import pytest

PROGRAM = """
import torch

from custom_autograd import Sample, custom_op

for factor in (2, 3):
    op = custom_op(f"optimised::double_{factor}", lambda x: x * 2, schema="(Tensor x) -> Tensor", reference=True)
    op.register_backward(lambda grad, factor=factor: grad * factor)
    samples = [Sample(torch.ones(3, dtype=torch.float64, requires_grad=True))]
    print(op.check(samples, checks=["contract", "directional"], raise_on_failure=False).ok)
"""


@pytest.mark.slow
def test_a_right_op_passes_and_a_fault_is_found():
    found = subprocess.run([sys.executable, "-OO", "-c", PROGRAM], capture_output=True, text=True, check=False)

    assert ["True", "False"] == found.stdout.splitlines(), found.stderr
