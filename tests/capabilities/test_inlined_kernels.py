"""`register_kernel(..., inline=True)`: compiled graphs hold what a kernel does in place of the op."""

import contextlib
import functools
import json
import subprocess
import sys

import pytest
import torch
from compiled_graphs import RECORD_LAUNCHES, count_kernels, operators_of
from expecttest import assert_expected_inline
from torch import Tensor
from torch._library.effects import EffectType
from ways import Calls

from custom_autograd import RegistrationError, Sample, check, custom_op
from custom_autograd.capabilities.compile_cache import fingerprint
from custom_autograd.capabilities.inlining import without_inlining
from custom_autograd.core.errors import KernelUnavailable, KernelWarning
from python_server import run_python

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.fixture(autouse=True)
def _compiled_triton(monkeypatch):
    """The tests' Triton is interpreted where there is no GPU, and then no kernel is inlined."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def declare(name, kernel, /, *, device="cpu", fake=torch.empty_like, **options):
    op = custom_op(f"inlined_kernels::{name}", lambda x: x * 3, schema="(Tensor x) -> Tensor", replace=True)
    if fake is not None:
        op.register_fake(fake)
    op.register_backward(lambda grad: 5 * grad)  # wrong: that is seen
    op.register_kernel(device, kernel, inline=True, **options)
    return op


def triple(x: Tensor) -> Tensor:
    return torch.add(x, x, alpha=2)


def graphs_of(function, *args):
    """The operators in the graphs of a function that nothing was compiled of before."""
    torch.compiler.reset()
    return operators_of(function, *args)


def vector():
    return torch.linspace(-1, 1, 6).requires_grad_()


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_a_graph_holds_the_kernel_and_the_rules(is_dynamic):
    op, x, expected = declare("held", triple), vector(), vector()
    forward, backward = graphs_of(lambda x: torch.relu(op(x + 1)), vector())
    out = torch.compile(lambda x: torch.relu(op(x + 1)), backend="aot_eager", dynamic=is_dynamic)(x)
    out.sum().backward()
    torch.relu(op(expected + 1)).sum().backward()

    assert "aten.add.Tensor" in forward
    assert not any(name.startswith("inlined_kernels") for name in (*forward, *backward))
    torch.testing.assert_close(out, torch.relu(op(expected + 1)))
    torch.testing.assert_close(x.grad, expected.grad)


def test_a_kernel_of_another_device_stays_out():
    op = declare("elsewhere", triple, device="cuda")

    assert "inlined_kernels.elsewhere.default" in graphs_of(op, vector().detach())[0]
    assert "registered: compiled graphs hold the cuda kernel" in op.capabilities()["inline"]


def test_the_kernel_that_would_run_is_inlined_if_it_is_to_be():
    op = declare("conditional", triple, name="even", when=lambda x: x.shape[0] % 2 == 0)
    op.register_kernel("cpu", lambda x: x * 3, name="odd")

    assert "inlined_kernels.conditional.default" not in graphs_of(op, torch.ones(4))[0]
    assert "inlined_kernels.conditional.default" in graphs_of(op, torch.ones(3))[0]


def test_arguments_that_equal_their_defaults_reach_kernel_and_condition():
    schema = "(Tensor x, float k=3.0, *, int n=1) -> Tensor"
    op = custom_op("inlined_kernels::scaled", lambda x, k, *, n: x * k * n, schema=schema)
    op.register_fake(lambda x, k, *, n: torch.empty_like(x))
    op.register_kernel("cpu", lambda x, k=7.0, *, n=9: x * k * n, inline=True, when=lambda k, n: k == 3.0 and n == 1)

    def run(x):
        return op(x) + op(x, 3.0) + op(x, n=1)

    assert not any(name.startswith("inlined_kernels") for name in graphs_of(run, torch.ones(3))[0])
    assert [9.0] * 3 == torch.compile(run, backend="aot_eager", fullgraph=True)(torch.ones(3)).tolist()


@pytest.mark.parametrize("is_dynamic", [None, True])
def test_a_condition_on_a_symbolic_size_is_a_guard(is_dynamic):
    op = declare("symbolic", lambda x: x * 100, name="even", when=lambda x: x.shape[0] % 2 == 0)
    run = torch.compile(lambda x: op(x), backend="aot_eager", fullgraph=True, dynamic=is_dynamic)

    assert [100.0, 3.0, 100.0, 3.0] == [run(torch.ones(size))[0].item() for size in (4, 5, 6, 7)]


def test_a_fake_that_asks_for_a_symbol():
    op = custom_op("inlined_kernels::chosen", lambda x: x[x > 0], schema="(Tensor x) -> Tensor")
    op.register_fake(lambda x: x.new_empty(torch.library.get_ctx().new_dynamic_size()))
    op.register_kernel("cpu", lambda x: x[x > 0], inline=True)
    x = torch.tensor([1.0, -1.0, 2.0])

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found = torch.compile(lambda x: op(x) * 2, backend="aot_eager", fullgraph=True)(x)

    assert [2.0, 4.0] == found.tolist()


def test_a_kernel_goes_before_the_reference():
    op = custom_op("inlined_kernels::both", lambda x: x * 3, schema="(Tensor x) -> Tensor", inline="reference")
    op.register_reference(lambda x: x + x + x)
    assert ["aten.add.Tensor", "aten.add.Tensor"] == graphs_of(op, torch.ones(3))[0]
    op.register_kernel("cpu", triple, inline=True)

    assert ["aten.add.Tensor"] == graphs_of(op, torch.ones(3))[0]


def test_a_kernel_that_is_replaced_by_one_without_the_option_stays_out():
    op = declare("replaced", triple)
    op.register_kernel("cpu", triple, replace=True)

    assert "inlined_kernels.replaced.default" in graphs_of(op, torch.ones(3))[0]
    assert op.capabilities()["inline"].startswith("none")


def test_an_exported_program_keeps_the_op():
    op = declare("exported", triple)

    names = [str(n.target) for n in torch.export.export(Calls(op), (torch.ones(3),)).graph.nodes]

    assert "inlined_kernels.exported.default" in names


def test_what_is_written_is_written():
    def double_(x):
        x.mul_(2)

    op = custom_op("inlined_kernels::double_", double_, schema="(Tensor(a!) x) -> ()", mutates_args="x")
    op.register_kernel("cpu", double_, inline=True)

    def written(x):
        y = x + 1
        op(y)
        op(x)
        return x + y

    x = torch.ones(3)
    found = torch.compile(written, backend="aot_eager", fullgraph=True)(x)

    assert [2.0] * 3 == x.tolist()
    assert [6.0] * 3 == found.tolist()
    assert not any(name.startswith("inlined_kernels") for name in graphs_of(written, torch.ones(3))[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")
def test_neighbours_fuse_with_a_kernel():
    op = declare("fused", triple)

    def kernels(context):
        return count_kernels(lambda x: torch.relu(op(x + 1) * 3), vector(), context=context)

    assert (1, 2) == (kernels(contextlib.nullcontext()), kernels(without_inlining()))


def test_layouts_are_those_that_the_kernel_relies_on():
    def first_row(x: Tensor) -> Tensor:
        assert x.is_contiguous()
        return x * 3

    op = declare("layouts", first_row, layouts="contiguous", fake=torch.empty_like)
    x = torch.rand(3, 4).T

    found = torch.compile(lambda x: op(x), backend="aot_eager", fullgraph=True)(x)

    torch.testing.assert_close(found, x * 3)
    assert x.stride() == found.stride()  # the fake's


def test_a_kernel_that_is_not_available_is_passed_over():
    def unavailable(x: Tensor) -> Tensor:
        raise KernelUnavailable("inlined_kernels::passed_over", "there is no such library")

    op = declare("passed_over", unavailable, name="fast", priority=1)

    with pytest.warns(KernelWarning, match="there is no such library"):
        names = graphs_of(op, torch.ones(3))[0]

    assert ["inlined_kernels.passed_over.default"] == names


def test_a_kernel_that_cannot_be_traced_raises():
    op = declare("untraceable", lambda x: torch.from_numpy(x.detach().numpy() * 3))

    with pytest.raises(Exception, match="the cpu kernel, which is inlined into the compiled graph, raises") as caught:
        graphs_of(op, torch.ones(3))

    assert "register it without inline=" in str(caught.value)


def test_a_kernel_that_returns_something_else_than_the_fake_raises():
    op = declare("other", lambda x: (x * 3).double())

    with pytest.raises(Exception, match="output 'output' of the cpu kernel, which is inlined, is not what the fake"):
        graphs_of(op, torch.ones(3))


def test_a_derived_fake_is_held_to_as_well():
    op = custom_op("inlined_kernels::derived", lambda x: x * 3, schema="(Tensor x) -> Tensor", reference=True)
    op.register_kernel("cpu", lambda x: (x * 3)[:1], inline=True)

    with pytest.raises(Exception, match="is not what the fake returns"):
        graphs_of(op, torch.ones(3))


def test_an_effect_and_inlining_exclude_each_other():
    op = declare("effectful", triple)
    with pytest.raises(RegistrationError, match="cannot have an effect: what takes its place has none"):
        op.register_effect(EffectType.ORDERED)
    other = custom_op("inlined_kernels::ordered", lambda x: x * 3, schema="(Tensor x) -> Tensor")
    other.register_effect(EffectType.ORDERED)
    with pytest.raises(RegistrationError) as raised:
        other.register_kernel("cpu", triple, inline=True)

    text = "\n".join(
        line for line in str(raised.value).splitlines() if not line.lstrip().startswith(("declared", "rule"))
    )
    assert_expected_inline(
        text,
        """\
inlined_kernels::ordered: an op with an effect cannot be inlined into compiled graphs: its kernel has none
  do         leave inline= out: the effect then orders the calls of the op""",
    )
    other.register_effect(None)
    other.register_kernel("cpu", triple, inline=True)


def test_a_kernel_is_part_of_the_key_of_compile_caches():
    one, other = declare("keyed", triple), declare("keyed", lambda x: x * 3 + 0)
    before = fingerprint(one._record)
    assert before != fingerprint(other._record)
    other.register_kernel("cpu", triple, replace=True)

    assert fingerprint(other._record) != before  # it is not inlined


def doubled_rows(**options):
    op = declare("chosen", triple, name="a", **options)
    op.register_kernel("cpu", lambda x: x * 2, name="b", inline=True)
    return fingerprint(op._record)


def test_what_decides_which_kernel_is_inlined_is_part_of_the_key(monkeypatch):
    """A cached graph holds the kernel that would have run when it was made."""
    keys = [
        doubled_rows(),
        doubled_rows(when=lambda x: x.shape[0] > 1),
        doubled_rows(when=lambda x: x.shape[0] > 2),
        doubled_rows(priority=-1),
        doubled_rows(layouts="contiguous"),
        doubled_rows(device="cuda"),
    ]
    op = declare("chosen", triple, name="a")
    op.register_kernel("cpu", lambda x: x * 2, name="b", inline=True)
    with op.use_kernel("b"):
        keys.append(fingerprint(op._record))
    with op.set_kernel_enabled("cpu", False):
        keys.append(fingerprint(op._record))
    assert keys[0] == fingerprint(op._record)
    with monkeypatch.context() as environment:
        environment.setenv("TRITON_INTERPRET", "1")
        keys.append(fingerprint(op._record))
    monkeypatch.setenv("CUSTOM_AUTOGRAD_KERNELS", "inlined_kernels::chosen=b")
    assert keys[6] == doubled_rows()
    op.register_kernel("cpu", lambda x: x * 2, name="b", priority=1, replace=True)
    keys.append(fingerprint(op._record))

    assert len({*keys}) == len(keys)


def test_a_kernel_that_is_passed_over_is_not_part_of_the_key():
    op, other = declare("passed", triple, name="a", priority=1), declare("passed", triple, name="a")
    before = fingerprint(op._record)
    for one in (op, other):
        one.register_kernel("cpu", lambda x: x * 2, name="b", inline=True)
    both = fingerprint(op._record)
    with pytest.warns(KernelWarning):
        op._record.kernels.pass_over(op._record.kernels["cpu"], KernelUnavailable("k.cpp", "not here"))

    assert len({before, both, fingerprint(op._record)}) == 3


def test_what_wraps_a_kernel_and_what_it_imports_is_part_of_the_key(imports_of, monkeypatch):
    monkeypatch.syspath_prepend(str(imports_of))
    (imports_of / "a_constant.py").write_text("VALUE = 1")

    def scaled(factor):
        @functools.wraps(triple)
        def kernel(x):
            return triple(x) * factor

        return kernel

    def importing(x):
        import a_constant

        return x * a_constant.VALUE

    def key(kernel):
        return fingerprint(declare("wrapped", kernel)._record)

    assert key(scaled(1)) == key(scaled(1)) != key(scaled(2))
    assert key(functools.partial(scaled(1))) == key(functools.partial(scaled(1))) != key(functools.partial(scaled(2)))
    before = key(importing)
    (imports_of / "a_constant.py").write_text("VALUE = 2")
    assert before != key(importing)  # its file
    import a_constant

    imported = key(importing)
    a_constant.VALUE = 3
    assert imported != key(importing)


def test_what_a_triton_kernel_reads_is_part_of_the_key():
    triton = pytest.importorskip("triton")

    def key(value=2, rows=8, warps=4):
        constant = triton.language.constexpr(value)

        @triton.autotune([triton.Config({}, num_warps=warps)], key=["n"])
        @triton.heuristics({"block": lambda _: rows})
        @triton.jit
        def scale_rows(x, n, block: triton.language.constexpr):
            return x * constant * block

        return fingerprint(declare("launching", lambda x: scale_rows[(1,)](x, x.numel()), device="cuda")._record)

    assert key() == key()
    assert 4 == len({key(), key(value=3), key(rows=16), key(warps=8)})


@pytest.mark.slow
def test_check_compiles_both_ways():
    op = custom_op("inlined_kernels::checked", lambda x: x * 3, schema="(Tensor x) -> Tensor", reference=True)
    op.register_kernel("cpu", lambda x: x * 3 + (0 if type(x) is Tensor else 1), inline=True)
    op.register_samples(lambda make: [Sample(make(3))])
    report = str(check(op, checks=["compile"]))

    assert "static shapes, inlined: output 0" in report
    assert "not inlined" not in report


TRITON = (
    """
from __future__ import annotations

import json

import torch
import triton
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.kernels import tl, triton_kernel


@triton_kernel
def scale_kernel(x, out, size, factor, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + index, tl.load(x + index, index < size) * factor, index < size)


@custom_op("triton_inlined::scale", reference=True)
def scale(x: Tensor, factor: float) -> Tensor:
    return x * factor


@scale.register_backward
def _(grad, factor):
    return scale(grad, factor)


@scale.register_kernel("cpu", inline=True)
def _(x, factor):
    out = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), factor, BLOCK=64)
    return out
"""
    + RECORD_LAUNCHES
    + "print(json.dumps(launches))\n"
)


@pytest.mark.slow
def test_a_graph_holds_the_launches_of_triton_kernels(tmp_path):
    pytest.importorskip("triton")
    (tmp_path / "scaling.py").write_text(TRITON)
    finished = run_python("scaling.py", cwd=tmp_path)

    assert finished.returncode == 0, finished.stderr
    names = ["x", "out", "size", "factor", "BLOCK"]
    launch = ["triton_kernel_wrapper_functional", names, ["out"]]
    assert [launch, launch] == json.loads(finished.stdout)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_values_on_a_gpu(tmp_path):
    program = TRITON[: TRITON.index("launches = []")].replace('"cpu"', '"cuda"')
    program = (
        program.replace("triton.runtime.driver.set_active(Driver())", "")
        + """
x = torch.randn(100, device="cuda", requires_grad=True)
compiled = torch.compile(lambda x: torch.relu(scale(x + 1, 2.0)), fullgraph=True)
torch.testing.assert_close(compiled(x), torch.relu((x + 1) * 2))
(grad,) = torch.autograd.grad(compiled(x).sum(), x)
torch.testing.assert_close(grad, 2.0 * (x + 1 > 0))
"""
    )
    (tmp_path / "scaling.py").write_text(program)

    subprocess.run([sys.executable, "scaling.py"], cwd=tmp_path, check=True)
