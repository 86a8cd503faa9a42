"""A changed rule is never served from a compile cache, neither on disk nor in the process."""

import functools
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from custom_autograd import custom_op
from custom_autograd.runtime.fingerprint import fingerprint

PROGRAM = """
import torch
from torch import Tensor
from custom_autograd import custom_op

def factor():
    return {helper}

@custom_op("cached::identity")
def identity(x: Tensor) -> Tensor:
    return x.clone()

@identity.register_fake
def _(x):
    return torch.empty_like(x)

@identity.register_backward
def _(grad):
    return {gradient}

f = torch.compile(lambda x: (identity(x) * 3).sum(), fullgraph=True)
x = torch.ones(4, requires_grad=True)
f(x).backward()
counters = torch._dynamo.utils.counters["aot_autograd"]
print(x.grad[0].item(), counters["autograd_cache_hit"], counters["autograd_cache_miss"])
"""


def run(folder, gradient, *, helper="1"):
    """The compiled gradient, and the hits and misses of AOTAutograd's cache, in a process of its own."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(PROGRAM.format(gradient=gradient, helper=helper)))
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    }
    finished = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    value, hits, misses = finished.stdout.split()
    return float(value), int(hits), int(misses)


def test_a_changed_backward_is_not_served_from_the_cache_on_disk(tmp_path):
    assert (6.0, 0, 1) == run(tmp_path, "grad * 2")
    assert (6.0, 1, 0) == run(tmp_path, "grad * 2")  # the cache works where nothing changed
    assert (30.0, 0, 1) == run(tmp_path, "grad * 10")


def test_a_changed_function_that_the_backward_calls_is_not_served_from_the_cache_on_disk(tmp_path):
    assert (6.0, 0, 1) == run(tmp_path, "grad * factor()", helper="2")
    assert (30.0, 0, 1) == run(tmp_path, "grad * factor()", helper="10")


@custom_op("compiler::scaled")
def scaled(x: Tensor) -> Tensor:
    return x.clone()


@scaled.register_fake
def _(x):
    return torch.empty_like(x)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_replaced_backward_is_traced_anew_in_the_same_process():
    f = torch.compile(lambda x: scaled(x).sum(), backend="aot_eager", fullgraph=True)
    x = torch.ones(2, requires_grad=True)
    for factor in (2.0, 10.0):
        scaled.register_backward(lambda grad, factor=factor: grad * factor, replace=True)

        assert_close(torch.autograd.grad(f(x), x)[0], torch.full((2,), factor))


def test_the_fingerprint_follows_rules_and_nothing_else():
    def declare(number, gradient):
        op = custom_op(f"compiler::fingerprint_{number}")(plain)
        op.register_backward(gradient)
        return fingerprint(op.entry)

    first = declare(1, lambda grad: grad * 2)

    assert first == declare(2, lambda grad: grad * 2)
    assert first != declare(3, lambda grad: grad * 3)


def plain(x: Tensor) -> Tensor:
    return x.clone()


@pytest.mark.parametrize("value", [[1.0], {"a": 1.0}, (1.0, "b")], ids=str)
def test_the_fingerprint_follows_containers_that_a_rule_reads(value):
    def declare(number, read):
        op = custom_op(f"compiler::{type(value).__name__}_{number}")(plain)
        op.register_backward(lambda grad: grad * len(read))
        return fingerprint(op.entry)

    assert declare(1, value) != declare(2, [2.0])


def test_the_fingerprint_follows_what_partial_bound():
    def declare(number, factor):
        op = custom_op(f"compiler::partial_{number}")(plain)
        op.register_backward(functools.partial(scale_gradient, factor))
        return fingerprint(op.entry)

    assert declare(1, 2.0) == declare(2, 2.0)
    assert declare(3, 2.0) != declare(4, 3.0)


def scale_gradient(factor, grad):
    return grad * factor
