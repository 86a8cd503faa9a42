"""200,000 calls leave no memory behind."""

import subprocess
import sys

import pytest

from custom_autograd.native.loading import library
from slow_cases import nightly_but

pytestmark = [
    pytest.mark.skipif(library.module is None, reason=library.reason),
    pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc"),
]

PROGRAM = """
import gc, os, sys
import torch
from torch import Tensor
from custom_autograd import custom_op
from custom_autograd.native.loading import library
library.load()
torch.set_num_threads(1)

@custom_op("leaks::by_name")
def by_name(x: Tensor, y: Tensor, scale: float = 2.0) -> Tensor:
    return x * y * scale

@by_name.register_backward
def _(grad, x, y, scale):
    return grad * y * scale, grad * x * scale

@custom_op("leaks::drop_in")
def drop_in(x: Tensor) -> Tensor:
    return x.sin()

def save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)
    ctx.facts = (1, 2.5, "a")

drop_in.register_autograd(lambda ctx, grad: grad * ctx.saved_tensors[0].cos(), setup_context=save)

@custom_op("leaks::lists", outputs=("total", "first"))
def lists(xs: list[Tensor], bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return xs[0] + xs[1], xs[0] * 1

@lists.register_backward
def _(grad_total, grad_first):
    return {"xs": [grad_total + grad_first, grad_total], "bias": None}

@custom_op("leaks::writing", mutates_args=("x",))
def writing(x: Tensor, y: Tensor) -> None:
    x.copy_(y)

@custom_op("leaks::failing")
def failing(x: Tensor) -> Tensor:
    raise ValueError("no")

plain, recorded = torch.ones(8), torch.ones(8, requires_grad=True)

def differentiated(call):
    return lambda: torch.autograd.grad(call().sum(), recorded)

def fail():
    try:
        failing(plain)
    except ValueError:
        pass

CASES = {
    "no grad": lambda: by_name(plain, plain),
    "forward": lambda: by_name(recorded, plain),
    "forward and backward": differentiated(lambda: by_name(recorded, plain)),
    "drop-in": differentiated(lambda: drop_in(recorded)),
    "lists": differentiated(lambda: lists([recorded, plain])[0]),
    "writing": lambda: writing(plain, recorded.detach()),
    "failing": fail,
}

def used():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

call = CASES[sys.argv[1]]
for _ in range(5000):
    call()
before, blocks = used(), sys.getallocatedblocks()
for _ in range(200_000):
    call()
print((used() - before) // 2**20, (sys.getallocatedblocks() - blocks) // 1000)
"""
CASES = ["no grad", "forward", "forward and backward", "drop-in", "lists", "writing", "failing"]


@pytest.mark.slow
@pytest.mark.parametrize("case", nightly_but("forward and backward".__eq__, CASES))
def test_nothing_is_left_of_200_000_calls(case):
    """A leak of a node or a tensor would be 20 MiB and more, and one of an object 200,000 blocks."""
    finished = subprocess.run([sys.executable, "-c", PROGRAM, case], capture_output=True, text=True, check=False)

    assert "" == finished.stderr
    mebibytes, thousands_of_blocks = map(int, finished.stdout.split())
    assert mebibytes < 10
    assert thousands_of_blocks < 10
