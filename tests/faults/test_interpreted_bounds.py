"""The check `bounds` sees each address at which a Triton kernel reads in the interpreter."""

import json
import os

import pytest

from python_server import run_python

PROGRAM = """
import json
import sys

import torch
import triton
from torch import Tensor
from triton import language as tl

from custom_autograd import Sample, check, custom_op


@triton.jit
def unmasked_kernel(x, out, size, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + index, tl.load(x + index) * 2, index < size)


@triton.jit
def masked_kernel(x, out, size, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + index, tl.load(x + index, index < size) * 2, index < size)


@triton.jit
def added_before_kernel(x, out, size, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + index - 1, 0.0, (index < size))
    tl.store(out + index, tl.load(x + index, index < size) * 2, index < size)


def message_of(kernel):
    @custom_op(f"interpreted_bounds::{kernel.__name__}")
    def op(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 32),)](x, out, x.numel(), BLOCK=32)
        return out

    (result,) = check(op, [Sample(torch.rand(29))], checks=["bounds"], isolated=False).results
    return result.message


print(json.dumps([message_of(kernel) for kernel in (masked_kernel, unmasked_kernel, added_before_kernel)]))
"""


def test_what_no_mask_leaves_out_fails(tmp_path):
    pytest.importorskip("triton")
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    finished = run_python("program.py", cwd=tmp_path, env=environment)
    assert finished.returncode == 0, finished.stderr

    assert [
        "",
        "the default kernel reads 3 elements past the end of 'x'",
        "the default kernel reads 1 element before the beginning of output 0",
    ] == json.loads(finished.stdout.splitlines()[-1])
