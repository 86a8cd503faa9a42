"""Autocast under transforms, compilation, export and checkpointing: as in plain calls, by value."""

import pytest
import torch
from capabilities.autocast_ops import BY_HAND, LOW, add_product, scaled
from tables import each
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint
from ways import WAYS, loss

from custom_autograd.torch_private.verification import GraphCounter, compiled_backward

CASES = each(("op", "by_hand"), BY_HAND.values(), ids=BY_HAND)
NEAR = {"rtol": 0.03, "atol": 0.05}  # bfloat16 keeps eight bits, and sums are taken in another order


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()


def lowered():
    return torch.autocast("cpu", LOW)


def tensors():
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator).requires_grad_() for shape in [(4, 3), (3, 5), (5,)])


def batch():
    return torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(1))


def gradients(output, inputs):
    return torch.autograd.grad(output.float().square().sum(), inputs)


@CASES
@each(("way", "plainly"), [ways for name, ways in WAYS.items() if name != "exported"])
def test_values_and_derivatives_within_autocast(op, by_hand, way, plainly):
    inputs = [x.detach() / 4 for x in tensors()]
    with lowered():
        found = way(op, *inputs)

    assert_close(found, plainly(by_hand, *inputs), **NEAR)


@CASES
def test_grad_of_vmap(op, by_hand):
    _, weight, scale = tensors()
    with lowered():
        found = torch.func.grad(lambda x: torch.vmap(loss(op), (0, None, None))(x, weight, scale).sum())(batch())
    expected = [torch.func.grad(loss(by_hand))(x, weight, scale) for x in batch()]

    assert_close(found, torch.stack(expected), **NEAR)


@CASES
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_within_autocast(op, by_hand, backend):
    inputs = tensors()
    compiled = torch.compile(lambda *inputs: op(*inputs), backend=backend, fullgraph=True)
    with lowered():
        found = compiled(*inputs)

    assert_close(found, by_hand(*inputs), **NEAR)
    assert_close(gradients(found, inputs), gradients(by_hand(*inputs), inputs), **NEAR)


@CASES
def test_compiled_with_autocast(op, by_hand):
    def call(*inputs):
        with lowered():
            return op(*inputs)

    inputs = tensors()
    found = torch.compile(call, backend="aot_eager", fullgraph=True)(*inputs)

    assert_close(found, by_hand(*inputs), **NEAR)
    assert_close(gradients(found, inputs), gradients(by_hand(*inputs), inputs), **NEAR)


def test_compiled_with_and_without_autocast():
    counter, inputs = GraphCounter(), tensors()
    compiled = torch.compile(lambda *inputs: scaled(*inputs), backend=counter, fullgraph=True)
    with lowered():
        below = compiled(*inputs)
    outside = compiled(*inputs)
    with lowered():
        compiled(*inputs)

    assert_close(below, BY_HAND["rules, hidden output"][1](*inputs), **NEAR)
    assert_close(outside, scaled(*inputs), rtol=1e-5, atol=1e-5)
    assert 2 == counter.graphs


@CASES
def test_compiled_backward_within_autocast(op, by_hand):
    inputs = tensors()
    with compiled_backward(), lowered():
        op(*inputs).float().square().sum().backward()

    assert_close(tuple(x.grad for x in inputs), gradients(by_hand(*inputs), inputs), **NEAR)


class Module(torch.nn.Module):
    """Calls every op under autocast."""

    def forward(self, *inputs):
        with lowered():
            return [op(*inputs) for op, _ in BY_HAND.values()]


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")  # torch itself, decomposing
@pytest.mark.parametrize("is_strict", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["non-strict", "strict"])
def test_exported(is_strict):
    program = torch.export.export(Module(), tensors(), strict=is_strict)
    expected = [by_hand(*tensors()) for _, by_hand in BY_HAND.values()]

    assert_close(program.module()(*tensors()), expected, **NEAR)
    assert_close(program.run_decompositions().module()(*tensors()), expected, **NEAR)


@CASES
@each("is_reentrant", [False, True])
def test_checkpointed(op, by_hand, is_reentrant):
    inputs = tensors()
    with lowered():
        output = checkpoint(op, *inputs, use_reentrant=is_reentrant)
    output.float().square().sum().backward()

    assert_close(tuple(x.grad for x in inputs), gradients(by_hand(*inputs), inputs), **NEAR)


def test_an_op_that_writes_is_compiled():
    def call(x, weight):
        total = torch.zeros(4, 5)
        add_product(total, x, weight)
        return total

    x, weight, _ = tensors()
    with lowered():
        found = torch.compile(call, backend="aot_eager", fullgraph=True)(x, weight)

    assert_close(found, (x.to(LOW) @ weight.to(LOW)).float(), **NEAR)


def test_an_op_that_writes_is_batched():
    x, (_, weight, _), total = batch(), tensors(), torch.zeros(6, 4, 5)
    with lowered(), torch.no_grad():
        torch.vmap(add_product, (0, 0, None), out_dims=None)(total, x, weight)

    assert_close(total, (x.to(LOW) @ weight.detach().to(LOW)).float(), **NEAR)
