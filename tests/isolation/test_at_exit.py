"""Ops can be called until the interpreter is torn down."""

import subprocess
import sys

PROGRAM = """
import atexit

def last():
    for op in (by_name, drop_in, called_before, replaced):
        assert op(torch.ones(2)).tolist() == [2, 2]
        assert op(torch.ones(2, dtype=torch.float64)).tolist() == [2, 2]
        assert op.overload(torch.ones(1, 2)).tolist() == [[2, 2]]
        x = torch.ones(3, requires_grad=True)
        op(x).sum().backward()
        assert x.grad.tolist() == [2, 2, 2]
        print(op.name, flush=True)

atexit.register(last)  # before PyTorch is imported: it runs after PyTorch's own handlers

import torch
from torch import Tensor
from custom_autograd import custom_op

def double(x: Tensor) -> Tensor:
    return x * 2

by_name = custom_op("at_exit::by_name", double)
by_name.register_backward(lambda grad: grad * 2)
drop_in = custom_op("at_exit::drop_in", double)
drop_in.register_autograd(lambda ctx, grad: grad * 2)
called_before = custom_op("at_exit::called_before", double)
called_before.register_backward(lambda grad: grad * 2)
called_before(torch.ones(1))
custom_op("at_exit::replaced", lambda x: x, schema="(Tensor x) -> Tensor")
replaced = custom_op("at_exit::replaced", double, replace=True)
replaced.register_backward(lambda grad: grad + grad)
"""


def test_an_exit_handler_that_is_older_than_torch_can_call_ops():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=300)

    called = [f"at_exit::{name}" for name in ("by_name", "drop_in", "called_before", "replaced")]
    assert (called, 0) == (done.stdout.split(), done.returncode), done.stderr
