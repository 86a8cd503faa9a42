"""With `torch.library.custom_op = custom_autograd.custom_op` before anything else, PyTorch imports and works."""

import pytest

from python_server import run_python
from slow_cases import slow_but_every

PATCH = """
import torch
import custom_autograd
torch.library.custom_op = custom_autograd.custom_op
"""

PROGRAMS = {
    "compiler": """
import torch._dynamo
x = torch.tensor([1.0, 2.0], requires_grad=True)
torch.compile(lambda x: (x.sin() * 2).sum(), backend="aot_eager", fullgraph=True)(x).backward()
torch.testing.assert_close(x.grad, 2 * x.detach().cos())
assert isinstance(torch.ops.prims.add.default(torch.ones(1), torch.ones(1)), torch.Tensor)
""",
    "distributed": """
import torch.distributed.tensor.experimental
from torch.distributed.tensor.experimental._context_parallel import _cp_custom_ops
assert isinstance(_cp_custom_ops.flex_cp_allgather_backward, custom_autograd.CustomOp)
""",
    "onnx": """
import torch.onnx
import torch.onnx.ops
x = torch.arange(16.0).reshape(1, 2, 2, 4)
cos, sin = torch.zeros(2, 2), torch.ones(2, 2)
found = torch.onnx.ops.rotary_embedding(x, cos, sin, torch.zeros(1, 2, dtype=torch.int64))
torch.testing.assert_close(found, torch.cat([-x[..., 2:], x[..., :2]], -1))
""",
}


@pytest.mark.parametrize("name", slow_but_every(3, PROGRAMS))
def test_pytorch_declares_its_own_ops_with_ours(name):
    found = run_python("-c", PATCH + PROGRAMS[name])

    assert 0 == found.returncode, found.stderr
