"""`triton_op` is `torch.library.triton_op`: compiled graphs hold its operations and launches."""

import json
import os

import pytest
import torch
from compiled_graphs import RECORD_LAUNCHES, operators_of
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.torch_version import TorchVersion

from custom_autograd import FakeUnavailable, triton_op
from python_server import run_python

HOMES = ["custom_autograd", pytest.param("torch.library", marks=pytest.mark.slow)]

DECLARATION = """
import json

import torch
import triton
from torch import Tensor
from triton import language as tl

from HOME import triton_op, wrap_triton


@triton.jit
def scale_kernel(x, out, size, factor, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + index, tl.load(x + index, index < size) * factor, index < size)


@triton_op("triton_ops::scale", mutates_args={})
def scale(x: Tensor, factor: float) -> Tensor:
    out = torch.empty_like(x)
    wrap_triton(scale_kernel)[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), factor, BLOCK=64)
    return out


def keep_factor(ctx, inputs, output):
    ctx.factor = inputs[1]


scale.register_autograd(lambda ctx, grad: (scale(grad, ctx.factor), None), setup_context=keep_factor)
"""

GRAPHS = (
    DECLARATION
    + RECORD_LAUNCHES
    + """
class Scaled(torch.nn.Module):
    def forward(self, x):
        return scale(x, 2.0) + 1


exported = torch.export.export(Scaled(), (torch.ones(3),))
called = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
print(json.dumps([launches, called]))
"""
)

VALUES = (
    DECLARATION
    + """
x = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
out = scale(x, 2.0)
(grad,) = torch.autograd.grad(out.square().sum(), x)
print(json.dumps([out.tolist(), grad.tolist()]))
"""
)


def printed(program, home, tmp_path, **environment):
    pytest.importorskip("triton")
    (tmp_path / "scaling.py").write_text(program.replace("HOME", home), encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    finished = run_python("scaling.py", cwd=tmp_path, env={**inherited, **environment})
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("home", HOMES)
def test_a_graph_holds_the_launches_and_an_exported_program_the_op(home, tmp_path):
    names = ["x", "out", "size", "factor", "BLOCK"]
    launch = ["triton_kernel_wrapper_functional", names, ["out"]]

    assert [[launch, launch], ["triton_ops.scale.default", "aten.add.Tensor"]] == printed(GRAPHS, home, tmp_path)


@pytest.mark.skipif(
    TorchVersion(torch.__version__) < (2, 13), reason="wrap_triton of torch before 2.13 refuses interpreted kernels"
)
@pytest.mark.parametrize("home", HOMES)
def test_values(home, tmp_path):
    expected = [[2.0, -4.0, 6.0], [8.0, -16.0, 24.0]]

    assert expected == printed(VALUES, home, tmp_path, TRITON_INTERPRET="1")


@pytest.mark.usefixtures("fresh_compiler")
def test_the_function_is_the_fake_until_one_is_registered(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    @triton_op("triton_ops::rows")
    def rows(x: Tensor, n: int) -> Tensor:
        return x.new_ones(n, x.shape[1]) * x.sum(0)

    with FakeTensorMode():
        assert (5, 2) == rows(torch.ones(3, 2), 5).shape
    assert "triton_ops.rows.default" not in operators_of(lambda x: rows(x, 5), torch.ones(3, 2))[0]
    assert rows.capabilities()["fake"].startswith("derived from the default kernel (test_triton_ops.py:")
    rows.register_fake(lambda x, n: x.new_empty(n + 1, x.shape[1]))
    with FakeTensorMode():
        assert (6, 2) == rows(torch.ones(3, 2), 5).shape


def test_an_interpreted_function_is_not_the_fake(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    op = triton_op("triton_ops::interpreted", lambda x: x * 2, schema="(Tensor x) -> Tensor")

    assert [2.0] == op(torch.ones(1)).tolist()
    with FakeTensorMode(), pytest.raises(FakeUnavailable, match="register_fake"):
        op(torch.ones(1))


def test_it_mutates_what_it_declares():
    @triton_op("triton_ops::double", mutates_args={"x"})
    def double(x: Tensor) -> None:
        x.mul_(2)

    x = torch.ones(2)
    double(x)

    assert [2.0, 2.0] == x.tolist()


@pytest.mark.slow
def test_the_source_of_a_launched_kernel_is_part_of_the_key_of_compile_caches(tmp_path):
    program = DECLARATION + (
        "\nfrom custom_autograd.capabilities.compile_cache import fingerprint\n"
        "print(json.dumps(fingerprint(scale._record)))\n"
    )
    other = program.replace("index < size) * factor", "index < size) / factor")
    keys = [printed(text, "custom_autograd", tmp_path) for text in (program, program, other)]

    assert keys[0] == keys[1] != keys[2]
