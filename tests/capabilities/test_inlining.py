"""`inline="reference"`: compiled graphs hold the reference in place of the op, with its values and gradients."""

import contextlib

import pytest
import torch
from compiled_graphs import count_kernels, operators_of
from expecttest import assert_expected_inline
from torch import Tensor
from torch._library.effects import EffectType
from torch.utils.checkpoint import checkpoint
from ways import Calls

from custom_autograd import DeclarationError, RegistrationError, Sample, check, custom_op
from custom_autograd.capabilities.inlining import without_inlining
from custom_autograd.torch_private.verification import GraphCounter

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@custom_op("inlining::gate", outputs=("out", "inner"), hidden=("inner",), reference=True, inline="reference")
def gate(x: Tensor, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    inner = torch.tanh(x * scale)
    return 0.5 * x * (1 + inner), inner


@gate.register_backward
def _(grad_out, grad_inner, x, inner, scale):
    slope = (1 - inner * inner) * scale
    return 3 * (grad_out * (0.5 * (1 + inner) + 0.5 * x * slope) + grad_inner * slope)  # wrong by 3: that is seen


def number(x):
    return torch.relu(gate(x + 1) * 3).sum()


def x():
    return torch.linspace(-1, 1, 6).requires_grad_()


def test_a_graph_holds_the_reference_and_the_rules():
    forward, backward = operators_of(number, x())

    assert "aten.tanh.default" in forward
    assert not any(name.startswith("inlining") for name in (*forward, *backward))
    with without_inlining():
        torch.compiler.reset()
        assert "inlining.gate.default" in operators_of(number, x())[0]


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_values_and_gradients_are_those_of_the_op(is_dynamic):
    compiled = torch.compile(number, backend="aot_eager", fullgraph=True, dynamic=is_dynamic)
    ours, eager = x(), x()
    found, expected = compiled(ours), number(eager)
    found.backward()
    expected.backward()

    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ours.grad, eager.grad)  # of the rule, which is wrong by 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")
def test_neighbours_fuse():
    def kernels(context):
        return count_kernels(lambda x: torch.relu(gate(x + 1) * 3), x(), context=context)

    assert (1, 2) == (kernels(contextlib.nullcontext()), kernels(without_inlining()))


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")  # torch itself, decomposing
def test_an_exported_program_keeps_the_op():
    program = torch.export.export(Calls(gate), (x().detach(),))
    names = [str(node.target) for node in program.graph.nodes]
    assert "inlining.gate.default" in names
    assert "inlining.gate.default" in [str(node.target) for node in program.run_decompositions().graph.nodes]


def test_transforms_inside_compiled_code():
    compiled = torch.compile(lambda x: torch.func.grad(number)(x), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x().detach()), torch.func.grad(number)(x().detach()))
    rows = torch.ones(3, 6)
    batched = torch.compile(lambda x: torch.vmap(gate)(x), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(batched(rows), gate(rows))


def test_a_compiled_op_runs_without_autocast_inlined_or_not():
    """PyTorch's own rule for custom ops in compiled code."""

    @custom_op("inlining::product", reference=True, inline="reference")
    def product(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y).to(x.dtype)

    def compiled(*args):
        torch.compiler.reset()
        return torch.compile(lambda x, y: product(x, y), backend="aot_eager", fullgraph=True)(*args)

    square = torch.rand(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = compiled(square, square)
        with without_inlining():
            expected = compiled(square, square)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    torch.testing.assert_close(found, square @ square)


def test_an_op_that_writes():
    @custom_op("inlining::scale_", mutates_args=("x",), reference=True, inline="reference")
    def scale_(x: Tensor, factor: float) -> Tensor:
        x.mul_(factor)
        return x.sum()

    def function(x):
        total = scale_(x, 3.0)
        return total + x.sum()

    found, expected = torch.ones(3), torch.ones(3)
    result = torch.compile(function, backend="aot_eager", fullgraph=True)(found)
    assert function(expected) == result
    assert torch.equal(expected, found)
    torch.compiler.reset()
    assert "inlining.scale_.default" not in operators_of(function, torch.ones(3))[0]


def test_a_written_input_of_a_graph_keeps_its_gradients():
    @custom_op("inlining::accumulate_", mutates_args=("total",), reference=True, inline="reference")
    def accumulate_(total: Tensor, x: Tensor) -> None:
        total.add_(x * x)

    accumulate_.register_backward(lambda grad_total, x: {"total": grad_total, "x": 2 * x * grad_total})

    def function(total, x):
        accumulate_(total, x)
        return x * 3

    leaf, total = x(), torch.zeros(6)
    torch.compile(function, backend="aot_eager", fullgraph=True)(total, leaf)
    assert total.requires_grad
    torch.testing.assert_close(torch.autograd.grad(total.sum(), leaf)[0], 2 * leaf.detach())
    total = torch.zeros(6)
    with torch.no_grad():
        torch.compile(function, backend="aot_eager", fullgraph=True)(total, leaf)
    assert not total.requires_grad


@pytest.mark.parametrize("inline", ["reference", None])
def test_an_op_that_returns_what_it_writes(inline):
    @custom_op(
        "inlining::add_",
        schema="(Tensor(a!) x, Tensor y) -> (Tensor(a!), Tensor[])",
        mutates_args=("x",),
        reference=True,
        inline=inline,
        replace=True,
    )
    def add_(x, y):
        return x.add_(y), [y * 2]

    add_.register_backward(lambda grad_x, grad_output_1: (grad_x, grad_x + 2 * grad_output_1[0]))

    def function(x, y):
        written, (double,) = add_(x, y)
        return written + double

    found, expected = torch.ones(3), torch.ones(3)
    assert function(expected, expected * 2).tolist() == compiled(function, found, found * 2).tolist()
    assert expected.tolist() == found.tolist()
    torch.compiler.reset()
    names = operators_of(lambda x, y: function(x * 1, y).sum(), torch.ones(6), x())[0]
    assert (inline is None) == any(name.startswith("inlining.add_") for name in names)


def test_containers_and_lists():
    @custom_op("inlining::weighted", reference=True, inline="reference")
    def weighted(parts: dict[str, Tensor], weights: list[float], others: list[Tensor]) -> Tensor:
        return sum(w * p for w, p in zip(weights, parts.values(), strict=True)) + sum(others)

    def function(a, b):
        return weighted({"a": a, "b": b}, [2.0, 3.0], [a, b]).sum()

    a, b = x(), x()
    forward, _ = operators_of(function, a, b)
    assert not any(name.startswith("inlining") for name in forward)
    assert ([3.0] * 6, [4.0] * 6) == (a.grad.tolist(), b.grad.tolist())


def test_checkpointing_in_compiled_code():
    ours, eager = x(), x()
    compiled = torch.compile(lambda x: checkpoint(number, x, use_reentrant=False), backend="aot_eager", fullgraph=True)
    compiled(ours).backward()
    number(eager).backward()
    torch.testing.assert_close(ours.grad, eager.grad)


def test_a_reference_that_is_registered_later():
    @custom_op("inlining::later", inline="reference")
    def later(x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() * 2)

    later.register_fake(torch.empty_like)

    with pytest.raises(Exception, match="there is none"):
        torch.compile(later, backend="aot_eager", fullgraph=True)(torch.ones(2))
    later.register_reference(lambda x: x * 2)
    torch.compiler.reset()
    assert [2.0, 2.0] == torch.compile(later, backend="aot_eager", fullgraph=True)(torch.ones(2)).tolist()


def test_an_op_that_is_declared_again_without_it():
    for inline, is_there in (("reference", False), (None, True)):

        @custom_op("inlining::again", reference=True, inline=inline)
        def again(x: Tensor) -> Tensor:
            return x * 2

        torch.compiler.reset()
        assert is_there == ("inlining.again.default" in operators_of(lambda x, again=again: again(x).sum(), x())[0])


def test_a_graph_is_compiled_once():
    counter = GraphCounter()
    compiled = torch.compile(number, backend=counter, fullgraph=True)
    for _ in range(3):
        compiled(x())
    assert 1 == counter.graphs


def test_what_cannot_be_inlined_is_refused():
    with pytest.raises(DeclarationError) as raised:
        custom_op("inlining::refused", lambda x: x, schema="(Tensor x) -> Tensor", inline="kernel")
    text = "\n".join(line for line in str(raised.value).splitlines() if "declared" not in line)
    assert_expected_inline(
        text,
        """\
inlining::refused: inline= takes what a compiled graph holds in place of the op
  expected   'reference', or None
  found      'kernel'""",
    )
    assert not hasattr(torch.ops.inlining, "refused")


def test_what_it_says_of_itself():
    assert gate.capabilities()["inline"].startswith("declared (test_inlining.py:")
    assert gate.capabilities()["inline"].endswith("): a compiled graph holds the reference")


def test_check_compiles_both_ways():
    @custom_op("inlining::false_in_graphs", inline="reference")
    def other(x: Tensor) -> Tensor:
        return x * 2

    other.register_fake(torch.empty_like)
    other.register_backward(lambda grad: grad * 2)
    other.register_reference(lambda x: x * 2 + (0 if type(x) is Tensor else 3))
    other.register_samples(lambda make: [Sample(make(3))])

    report = str(check(other, checks=["compile"]))
    assert "static shapes, inlined: output 0" in report
    assert "dynamic shapes, inlined: output 0" in report
    assert "not inlined" not in report
    other.register_reference(lambda x: x * 2, replace=True)
    torch.compiler.reset()
    assert check(other, checks=["compile"]).ok


def inlined(name, reference, kernel=None, fake=torch.empty_like):
    op = custom_op(f"inlining::{name}", kernel or twice_of, inline="reference", replace=True)
    op.register_reference(reference, replace=True)
    if fake is not None:
        op.register_fake(fake, replace=True)
    return op


def twice_of(x: Tensor) -> Tensor:
    return x * 2


def both_of(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x * 2


def compiled(function, *args):
    return torch.compile(function, backend="aot_eager", fullgraph=True)(*args)


class TestAReferenceThatIsNotTheOp:
    """What a reference may do as a fallback, where its results are looked at, and must not do in a graph."""

    @pytest.mark.parametrize(
        "reference", [lambda x: x, lambda x: x.view(-1), lambda x: x.expand(2)], ids=["itself", "view", "expanded"]
    )
    def test_its_result_is_its_input(self, reference):
        op, x = inlined("aliasing", reference), torch.ones(2)

        def written(x):
            y = op(x)
            y.add_(1)
            return y, x * 1

        assert [[2, 2], [1, 1]] == [one.tolist() for one in compiled(written, x)]
        compiled(op, x).add_(1)
        assert [1, 1] == x.tolist()

    def test_its_results_are_one_tensor(self):
        def reference(x):
            y = x * 2
            return y, y

        op = inlined("both", reference, both_of, lambda x: (torch.empty_like(x), torch.empty_like(x)))

        def written(x):
            first, second = op(x)
            first.add_(1)
            return second

        assert [2, 2] == compiled(written, torch.ones(2)).tolist()

    def test_it_writes_to_its_input(self):
        op = inlined("writing", lambda x: x.mul_(2).clone())

        with pytest.raises(Exception, match="the reference writes to argument 'x', which is not declared as mutated"):
            compiled(op, torch.ones(2))

    @pytest.mark.parametrize("reference", [lambda x: x.double(), lambda x: x[None]], ids=["dtype", "shape"])
    def test_its_result_is_not_that_of_the_fake(self, reference):
        op = inlined("other", reference)

        with pytest.raises(Exception, match=r"output 'output' of the reference, which is inlined, is not"):
            compiled(op, torch.ones(2))

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_its_result_has_other_strides(self, dynamic):
        op = inlined("strides", lambda x: (x.T.contiguous() * 2).T, fake=lambda x: x.new_empty(x.shape))

        def flat(x):
            return op(x).view(-1)

        found = torch.compile(flat, backend="aot_eager", fullgraph=True, dynamic=dynamic)(torch.ones(2, 3))

        assert [2] * 6 == found.tolist()

    def test_an_exception_names_it(self):
        op = inlined("raising", lambda x: x.numpy())

        with pytest.raises(Exception, match="inlining::raising: the reference, which is inlined into the"):
            compiled(op, torch.ones(2))

    def test_the_check_of_the_cache_sees_the_option(self):
        assert check(gate, [Sample(torch.ones(2))], checks=["cache"]).ok

    def test_an_effect_is_refused(self):
        op = inlined("effect", twice_of)

        with pytest.raises(RegistrationError, match="cannot have an effect"):
            op.register_effect(EffectType.ORDERED)
