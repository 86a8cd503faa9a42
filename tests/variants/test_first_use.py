"""Variants that compiled code uses before any other has: no lock is taken, and no write traced, with a call."""

from python_server import run_python

PROGRAM = """
import warnings
import torch
from torch import Tensor
from custom_autograd import custom_op

@custom_op("first_use::sine", reference=True)
def sine(x: Tensor) -> Tensor:
    return x.sin()

@custom_op("first_use::cosine", reference=True)
def cosine(x: Tensor) -> Tensor:
    return x.cos()

class Cosine(torch.nn.Module):
    def forward(self, x):
        return cosine.inplace(x * 1)

compiled = torch.compile(
    lambda x, out: (sine.inplace(x * 1), sine.out(x * 1, out=out)), fullgraph=True, backend="aot_eager"
)
x, out = torch.randn(3), torch.empty(3)
for stance in ("default", "fail_on_recompile"):
    with torch.compiler.set_stance(stance):
        for found in compiled(x, out):
            torch.testing.assert_close(found, x.sin())
with warnings.catch_warnings():
    warnings.filterwarnings("error", message=".*side effects")
    torch.export.export(Cosine(), (x,), strict=True)
"""


def test_variants_are_made_where_a_call_is_traced():
    ended = run_python("-c", PROGRAM)

    assert ended.returncode == 0, ended.stderr
