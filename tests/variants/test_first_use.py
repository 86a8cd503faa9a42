"""Variants that compiled code uses before any other has: no lock is taken while a call is traced."""

from python_server import run_python

PROGRAM = """
import torch
from torch import Tensor
from custom_autograd import custom_op

@custom_op("first_use::sine", reference=True)
def sine(x: Tensor) -> Tensor:
    return x.sin()

compiled = torch.compile(
    lambda x, out: (sine.inplace(x * 1), sine.out(x * 1, out=out)), fullgraph=True, backend="aot_eager"
)
x, out = torch.randn(3), torch.empty(3)
for found in compiled(x, out):
    torch.testing.assert_close(found, x.sin())
"""


def test_variants_are_made_where_a_call_is_traced():
    ended = run_python("-c", PROGRAM)

    assert ended.returncode == 0, ended.stderr
